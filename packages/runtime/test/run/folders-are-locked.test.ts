import { mkdir, mkdtemp, rm, utimes } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RunFolder } from "../../src/run/run-folder.ts";

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
  const release = await folder.acquire((error) => losses.push(error));
  const steady = Date.now;
  vi.spyOn(Date, "now").mockImplementation(() => steady() + 6 * hourMs);
  await expect(new RunFolder(root, "run-1").acquire(never)).rejects.toMatchObject({ code: "run.locked" });
  expect(losses).toEqual([]);
  await release();
  await (await folder.acquire(never))();
}, 60_000);

test("J1: a clock that was set back keeps no run from whoever resumes it", async () => {
  const folder = await folderOf("run-1");
  const lock = join(folder.path, "runner.lock");
  await mkdir(lock); // of a runner that was killed
  const ahead = new Date(Date.now() + 6 * hourMs);
  await utimes(lock, ahead, ahead);
  await (await folder.acquire(never))();
}, 60_000);
