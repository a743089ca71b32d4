import type { Prompt } from "@treadle/contracts";
import type { Carried } from "@treadle/runtime";
import { tailRound } from "@treadle/trajectories";
import { oversamplingOf, type RolloutOrderConfig } from "./order-config.ts";

/**
 * The prompts of a step that wants so many: those that lost a race where it is their turn, and new ones, which `draw` gives, so many
 * of a round; rounds count from 1 without a gap (TQ1).
 */
export function promptsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  { step, carried }: { readonly step: number; readonly carried: Carried<Prompt> },
  draw: (round: number, count: number) => readonly Prompt[],
): readonly Prompt[] {
  const { items, numSteps: numLateSteps } = carried;
  const { prompts } = oversamplingOf(config);
  const given = { step, numWanted, numLate: items.length, numLateSteps };
  const { numLate, fresh } = tailRound(given, { prompts, lateJoin: config.tail === "carry" });
  return [...items.slice(0, numLate), ...(fresh ? draw(fresh.round, fresh.count) : [])];
}

/** What the journal has of a prompt that goes on later: after a resume its episodes begin again. */
export function withoutBegun({ begun: _, ...prompt }: Prompt): Prompt {
  return prompt;
}
