/** The command line as a user starts it, in a process of its own. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { command, projectRoot } from "./project.ts";

export type Finished = { readonly code: number | null; readonly stdout: string; readonly stderr: string };
export type Started = {
  readonly child: ChildProcess;
  readonly output: () => string;
  readonly finished: Promise<Finished>;
};

export function startTreadle(args: readonly string[], input?: string, cwd = projectRoot): Started {
  const child = spawn(process.execPath, [command, ...args], { cwd, stdio: ["pipe", "pipe", "pipe"] });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (bytes) => {
    stdout += bytes;
  });
  child.stderr.on("data", (bytes) => {
    stderr += bytes;
  });
  child.stdin.end(input ?? "");
  const finished = new Promise<Finished>((resolve) => child.on("close", (code) => resolve({ code, stdout, stderr })));
  return { child, output: () => stdout + stderr, finished };
}

export const treadle = (args: readonly string[], input?: string): Promise<Finished> =>
  startTreadle(args, input).finished;

/** A folder for runs that goes away with the test. */
export async function temporaryRuns(): Promise<{ path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), "treadle-runs-"));
  return {
    path,
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }),
  };
}

/** Waits until `holds`; the test's own time limit is what ends a wait in vain. */
export async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 50));
}
