/** What a step takes besides its components. Pure. */
import type { Plan, Profile } from "@treadle/contracts";

export const numRanks = ({ components }: Pick<Plan, "components">): number =>
  Object.values(components).reduce((sum, { ranks }) => sum + ranks.length, 0);

/** Components take turns, each with whole batches. */
export const isInTurn = ({ mode, granularity }: Plan): boolean =>
  mode === "temporal" && granularity.default === "all" && Object.keys(granularity.channels).length === 0;

/**
 * Seconds of a step of the plan. Each rank that is called costs messages and processes that wake up, of which others' work hides a part.
 * A line by the number of ranks, through the layouts that were measured, holds for all but those that take turns with whole batches.
 */
export function overheadOf(
  { overheadSeconds, rankOverheadSeconds, baseOverheadSeconds = 0 }: Profile,
  plan: Plan,
): number {
  if (rankOverheadSeconds === undefined || isInTurn(plan)) return overheadSeconds;
  return baseOverheadSeconds + rankOverheadSeconds * numRanks(plan);
}
