/** Runners of a ledger in processes of their own, to be killed and suspended. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { RunEvent } from "@treadle/contracts";
import { afterEach, beforeEach } from "vitest";
import { ledgerWorkflow } from "./ledger.ts";
import { loaderFlags, projectRoot, runner } from "./project.ts";
import { makeTemporary } from "./temporary-folder.ts";

/** The last that a runner says when its run failed. */
export type Threw = { readonly type: "threw"; readonly message: string; readonly code?: string };

export type RunnerProcess = {
  readonly child: ChildProcess;
  readonly events: RunEvent[];
  /** resolves with the exit code, or with the signal that ended it */
  readonly exited: Promise<number | NodeJS.Signals | null>;
  readonly threw: () => Threw | undefined;
};

/** Those of each test, in a folder of its own: what a test leaves is killed and removed after it. */
export function runnersOfEachTest() {
  let root: string;
  const started: RunnerProcess[] = [];
  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), "treadle-runs-"));
    await makeTemporary(root);
  });
  afterEach(async () => {
    for (const { child } of started.splice(0)) child.kill("SIGKILL");
    await rm(root, { recursive: true, force: true });
  });
  return {
    get root(): string {
      return root;
    },
    /** a run, or goes on with one */
    start(runId: string, overrides: readonly string[], workflow?: string): RunnerProcess {
      const runner = startRunner(root, runId, overrides, workflow);
      started.push(runner);
      return runner;
    },
  };
}

/** Starts a run in `root`, which has a folder `tmp` for sockets, or goes on with one. */
export function startRunner(
  root: string,
  runId: string,
  overrides: readonly string[],
  workflow = ledgerWorkflow,
): RunnerProcess {
  const args = [...loaderFlags, runner, projectRoot, root, workflow, runId, ...overrides];
  const child = spawn(process.execPath, args, {
    stdio: ["ignore", "pipe", "inherit"],
    cwd: projectRoot,
    env: { ...process.env, TMPDIR: join(root, "tmp") },
  });
  const events: RunEvent[] = [];
  let threw: Threw | undefined;
  createInterface({ input: child.stdout }).on("line", (line) => {
    const told = JSON.parse(line) as RunEvent | Threw;
    if (told.type === "threw") threw = told;
    else events.push(told);
  });
  const exited = new Promise<number | NodeJS.Signals | null>((resolve) =>
    child.once("close", (code, signal) => resolve(code ?? signal)),
  );
  return { child, events, exited, threw: () => threw };
}
