import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { computing, conflictsFile } from "../support/workers/exclusive-devices.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-devices-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

test("who computes on a device has it until it has done so", async () => {
  await computing(["cpu:0", "cpu:1"], folder, async () => {
    expect((await readdir(folder)).toSorted()).toEqual(["cpu:0", "cpu:1"]);
  });
  expect(await readdir(folder)).toEqual([]);
});

test("a second process on a device is told of the first, and so is whoever judges; one that has died has none", async () => {
  const other = spawn("sleep", ["600"]);
  await once(other, "spawn");
  await writeFile(join(folder, "cpu:0"), String(other.pid));
  const compute = () => computing(["cpu:0"], folder, async () => {});
  const conflict = `two compute on '${join(folder, "cpu:0")}': ${other.pid} and ${process.pid}`;
  await expect(compute()).rejects.toThrow(conflict);
  expect(await readFile(join(folder, conflictsFile), "utf8")).toBe(`${conflict}\n`);
  other.kill("SIGKILL");
  await once(other, "exit");
  await compute();
  expect(await readdir(folder)).not.toContain("cpu:0");
});
