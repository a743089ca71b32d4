/**
 * Which prompts a step is given where prompts that lost a race go on later: RollPacker's tail batching (arXiv:2509.21009). Pure.
 *
 * - TQ1 new prompts are drawn round by round, none skipped and none twice, whatever steps of late ones lie between
 * - TQ2 a step has late prompts alone, as many as it wants, those that wait longest; or new ones alone, which race
 * - TQ3 fewer late prompts wait than a step wants and one race can add
 *
 * In the paper, too, the samples of a prompt race; here they do only where `oversample.samples` says so, as the first of a prompt's
 * samples are short ones.
 */
import { begunFor, type Oversampling } from "./tail-race.ts";

export type TailRound =
  /** so many of those that wait, the first of them */
  | { readonly type: "late"; readonly count: number }
  /** the new prompts of that round, from 1 */
  | { readonly type: "new"; readonly round: number; readonly count: number };

export type StepGiven = {
  /** from 1 */
  readonly step: number;
  /** prompts that it wants */
  readonly numWanted: number;
  /** late ones that wait */
  readonly numLate: number;
  /** earlier steps that were given late ones */
  readonly numLateSteps: number;
};

export function tailRound(
  { step, numWanted, numLate, numLateSteps }: StepGiven,
  { prompts }: Pick<Oversampling, "prompts">,
): TailRound {
  if (numLate >= numWanted) return { type: "late", count: numWanted };
  return { type: "new", round: step - numLateSteps, count: begunFor(numWanted, prompts) };
}
