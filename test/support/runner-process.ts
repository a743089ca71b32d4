/** Runners of the ledger in processes of their own, to be killed and suspended. */
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { RunEvent } from "@treadle/contracts";
import { projectRoot } from "./cluster.ts";

const script = fileURLToPath(new URL("./run-ledger.ts", import.meta.url));

/** The last that a runner says when its run failed. */
export type Threw = { readonly type: "threw"; readonly message: string; readonly code?: string };

export type RunnerProcess = {
  readonly child: ChildProcess;
  readonly events: RunEvent[];
  /** resolves with the exit code */
  readonly exited: Promise<number | null>;
  readonly threw: () => Threw | undefined;
};

/** Starts a run in `root`, which has a folder `tmp` for sockets, or goes on with one. */
export function startRunner(root: string, runId: string, overrides: readonly string[]): RunnerProcess {
  const flags = ["--conditions=source", "--import", "tsx"];
  const child = spawn(process.execPath, [...flags, script, root, runId, ...overrides], {
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
  const exited = new Promise<number | null>((resolve) => child.once("close", (code) => resolve(code)));
  return { child, events, exited, threw: () => threw };
}
