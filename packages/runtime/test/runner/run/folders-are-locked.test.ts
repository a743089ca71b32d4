import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { mkdir, mkdtemp, open, rm, utimes } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RunFolder } from "../../../src/runner/run/run-folder.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-lock-"));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(root, { recursive: true });
});

const hourMs = 3_600_000;
const never = (error: Error) => {
  throw error;
};

async function folderOf(runId: string): Promise<RunFolder> {
  const folder = new RunFolder(root, runId);
  await folder.create();
  return folder;
}

test("J1: a clock that is set forwards takes no run from the runner that has it", async () => {
  const folder = await folderOf("run-1");
  const losses: Error[] = [];
  const { release } = await folder.acquire((error) => losses.push(error));
  const steady = Date.now;
  vi.spyOn(Date, "now").mockImplementation(() => steady() + 6 * hourMs);
  await expect(new RunFolder(root, "run-1").acquire(never)).rejects.toMatchObject({ code: "run.locked" });
  expect(losses).toEqual([]);
  await release();
  await (await folder.acquire(never)).release();
}, 60_000);

test("J1: a runner of this machine that was killed keeps its run from nobody, and one that is only suspended does", async () => {
  const folder = await folderOf("run-1");
  const source = `
    const { RunFolder } = await import(${JSON.stringify(new URL("../../../src/runner/run/run-folder.ts", import.meta.url).href)});
    await new RunFolder(${JSON.stringify(root)}, "run-1").acquire(() => {});
    console.log("has it");
    setInterval(() => {}, 1000);`;
  const holder = spawn(process.execPath, [
    "--conditions=source",
    "--import",
    "tsx",
    "--input-type=module",
    "-e",
    source,
  ]);
  await once(holder.stdout, "data");
  holder.kill("SIGSTOP");
  const taking = new RunFolder(root, "run-1").acquire(never);
  const early = await Promise.race([
    taking.then(() => "taken"),
    new Promise<string>((resolve) => setTimeout(() => resolve("kept"), 1500)),
  ]);
  expect(early).toBe("kept");
  const lock = join(folder.path, "runner.lock");
  // As if it were beaten on: only the holder's end is to free it. By its handle: the next one has a lock of the same name.
  const held = await open(lock);
  const beating = setInterval(() => void held.utimes(new Date(), new Date()).catch(() => {}), 20);
  holder.kill("SIGKILL");
  const { release } = await taking;
  clearInterval(beating);
  await held.close();
  expect(readFileSync(`${lock}.holder`, "utf8")).toContain(`"pid":${process.pid}`);
  // What an ended holder left beside it does not take the lock from the present one.
  const left = JSON.parse(readFileSync(`${lock}.holder`, "utf8"));
  writeFileSync(`${lock}.holder`, JSON.stringify({ ...left, pid: holder.pid, lock: "another" }));
  await expect(new RunFolder(root, "run-1").acquire(never)).rejects.toMatchObject({ code: "run.locked" });
  await release();
}, 90_000);

test("FL1: where nothing says who holds a folder, it is not lost; another holder's lock is, and stays", async () => {
  const folder = await folderOf("run-1");
  const lock = join(folder.path, "runner.lock");
  const losses: Error[] = [];
  const held = await folder.acquire((error) => losses.push(error));
  const own = readFileSync(`${lock}.holder`, "utf8");
  for (const unclear of ["", "{}"]) {
    writeFileSync(`${lock}.holder`, unclear);
    await held.look();
  }
  await rm(`${lock}.holder`);
  await held.look();
  expect(losses).toEqual([]);
  writeFileSync(`${lock}.holder`, JSON.stringify({ ...JSON.parse(own), token: "another's" }));
  await held.look();
  expect(losses).toEqual([expect.objectContaining({ code: "run.locked" })]);
  await rm(lock, { recursive: true });
  await mkdir(lock);
  await held.release();
  expect([existsSync(lock), existsSync(`${lock}.holder`)]).toEqual([true, true]);
}, 60_000);

test("J1: a clock that was set back keeps no run from whoever resumes it", async () => {
  const folder = await folderOf("run-1");
  const lock = join(folder.path, "runner.lock");
  await mkdir(lock); // of a runner that was killed
  const ahead = new Date(Date.now() + 6 * hourMs);
  await utimes(lock, ahead, ahead);
  await (await folder.acquire(never)).release();
}, 60_000);
