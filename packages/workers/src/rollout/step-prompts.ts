import type { Prompt } from "@treadle/contracts";
import type { Carried } from "@treadle/runtime";
import { tailRound } from "@treadle/trajectories";
import { oversamplingOf, type RolloutOrderConfig } from "./order-config.ts";

/**
 * The prompts of a step that wants so many: more of them where they race, and where enough have lost a race, those. `draw` gives
 * the new prompts of a round, so many of them; rounds count from 1 without a gap (TQ1).
 */
export function promptsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  { step, carried }: { readonly step: number; readonly carried: Carried<Prompt> },
  draw: (round: number, count: number) => readonly Prompt[],
): readonly Prompt[] {
  const { items, numSteps: numLateSteps } = carried;
  const given = tailRound({ step, numWanted, numLate: items.length, numLateSteps }, oversamplingOf(config));
  return given.type === "late" ? items.slice(0, given.count) : draw(given.round, given.count);
}
