/** What a step takes besides its components. Pure. */
import type { Plan, Profile } from "@treadle/contracts";

export const numRanks = ({ components }: Pick<Plan, "components">): number =>
  Object.values(components).reduce((sum, { ranks }) => sum + ranks.length, 0);

/** Components take turns, each with whole batches. */
const isInTurn = ({ mode, granularity }: Plan): boolean =>
  mode === "temporal" && granularity.default === "all" && Object.keys(granularity.channels).length === 0;

/**
 * Seconds of a step of the plan. Each rank that is called costs messages and processes that wake up; how much of that others' work
 * hides is measured of many ways to run, and taken for the rest of them.
 */
export function overheadOf(
  { overheadSeconds, rankOverheadSeconds, baseOverheadSeconds = 0 }: Profile,
  plan: Plan,
): number {
  if (rankOverheadSeconds === undefined || isInTurn(plan)) return overheadSeconds;
  return baseOverheadSeconds + rankOverheadSeconds * numRanks(plan);
}
