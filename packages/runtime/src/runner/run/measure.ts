/** Runs a workflow only to learn what it does and costs, in a folder that is removed afterwards. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type FlowGraph, type Profile, TreadleError } from "@treadle/contracts";
import type { RunOptions } from "./open-run.ts";
import { runWorkflow } from "./start-run.ts";

export type MeasureOptions = Omit<RunOptions, "runsRoot" | "onLearnt" | "measureAnew">;

/** More steps than measuring takes; it ends by itself before. */
const mostSteps = 100_000;

/**
 * Measures a workflow on several device counts and in chunks, plans with what it found, tries the plans that are near the
 * best, and keeps the profile where runs with `placement.mode: auto` look for it.
 */
export async function profileWorkflow(options: MeasureOptions): Promise<{ profile: Profile; path: string }> {
  return measure(options, [], ({ profile, path, isSettled }) => (isSettled && profile ? { profile, path } : undefined));
}

/** Runs one step and tells what calls what, and what flows over which channel. */
export function traceWorkflow(options: MeasureOptions): Promise<FlowGraph> {
  const settings = ["placement.auto.warmupSteps=0", "placement.auto.measuredSteps=1"];
  return measure(options, settings, ({ graph }) => graph);
}

async function measure<T>(
  options: MeasureOptions,
  settings: readonly string[],
  pick: (learnt: Parameters<NonNullable<RunOptions["onLearnt"]>>[0]) => T | undefined,
): Promise<T> {
  const runsRoot = await mkdtemp(join(tmpdir(), "treadle-measure-"));
  const enough = new AbortController();
  const stopped = () => enough.abort();
  options.stop?.addEventListener("abort", stopped);
  let found: T | undefined;
  try {
    await runWorkflow({
      ...options,
      overrides: [...(options.overrides ?? []), "placement.mode=auto", `steps=${mostSteps}`, ...settings],
      runsRoot,
      stop: enough.signal,
      measureAnew: true,
      onLearnt: (learnt) => {
        found ??= pick(learnt);
        if (found !== undefined) enough.abort();
      },
    });
  } finally {
    options.stop?.removeEventListener("abort", stopped);
    await rm(runsRoot, { recursive: true, force: true });
  }
  if (found === undefined) {
    throw new TreadleError(
      "run.stopped",
      `'${options.workflow}' ended before it was measured; a workflow's loop over 'steps' is what is measured`,
    );
  }
  return found;
}
