/** Which policy version chose which tokens of a completion, as runs in the order of the tokens. Pure. */
import { z } from "zod";

export const VersionRun = z.tuple([z.int(), z.int().positive()]).readonly();
/** This version chose the next so many tokens. */
export type VersionRun = readonly [policyVersion: number, numTokens: number];
export type VersionRuns = readonly VersionRun[];

/** The runs of the first `numTokens` tokens; those beyond the runs are of `policyVersion`. */
export function versionRunsOf(runs: VersionRuns, numTokens: number, policyVersion: number): VersionRuns {
  const all: [number, number][] = [];
  let left = numTokens;
  for (const [version, count] of [...runs, [policyVersion, numTokens] as const]) {
    const taken = Math.min(count, left);
    const last = all.at(-1);
    if (last?.[0] === version) last[1] += taken;
    else if (taken > 0) all.push([version, taken]);
    left -= taken;
  }
  return all;
}
