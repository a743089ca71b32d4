/** What is known of processes that are struck, and of the runs that they make. */
import type { ChildProcess } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RunEvent } from "@treadle/contracts";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import type { NodesWorld } from "../support/nodes.ts";

/** How long an agent hangs that is struck so. */
export const hangMs = 12_000;

/** The environment of processes that do on a signal what `on-signal.mjs` says. */
export const strikable = {
  NODE_OPTIONS: `--import=${fileURLToPath(new URL("on-signal.mjs", import.meta.url))}`,
  CHAOS_HANG_MS: String(hangMs),
};

export const isRunning = (process: { readonly child: ChildProcess } | undefined): boolean =>
  process !== undefined && process.child.exitCode === null && process.child.signalCode === null;

/** Of the run with this folder. */
export function committedSteps(folder: string): number {
  try {
    const path = join(folder, "journal.jsonl");
    return readRecords(readFileSync(path, "utf8"), path).records.filter(({ type }) => type === "step").length;
  } catch {
    return 0; // it is taken by a runner just now, or has not begun
  }
}

/** What runners have said in these last milliseconds, with the ends and the beginnings of workers. */
export function said(events: readonly RunEvent[], ms: number): string[] {
  const nowMs = Date.now();
  return events.flatMap((event) => {
    if (event.atMs < nowMs - ms) return [];
    const at = `${((event.atMs - nowMs) / 1000).toFixed(1)} s`;
    if (event.type === "log" && event.worker === "runner") return [`${at}  ${event.line}`];
    if (event.type === "worker-died") return [`${at}  ${event.worker} died: ${event.reason}`];
    if (event.type === "worker-started" || event.type === "worker-restarted") return [`${at}  ${event.worker} is up`];
    return [];
  });
}

/** Processes that this world started, however far from it. */
export function processesOf({ temporary }: Pick<NodesWorld, "temporary">): number[] {
  return readdirSync("/proc").flatMap((name) => {
    try {
      const mine = readFileSync(`/proc/${name}/environ`, "latin1").includes(`TMPDIR=${temporary}`);
      return /^\d+$/.test(name) && mine && Number(name) !== process.pid ? [Number(name)] : [];
    } catch {
      return [];
    }
  });
}
