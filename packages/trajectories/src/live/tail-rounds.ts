/**
 * Which prompts a step is given where prompts that lost a race go on later. Pure. Either in steps of their own, which is RollPacker's
 * tail batching (arXiv:2509.21009), or with the new prompts of the next step.
 *
 * - TQ1 new prompts are drawn round by round, none skipped and none twice, whatever late ones are played between
 * - TQ2 in steps of their own there are late prompts alone, as many as a step wants, those that wait longest; fewer than that wait
 *   but for what the races of the steps under way add
 * - TQ3 with new ones, all late prompts are played in the next step, beside as many new ones as it wants. Of these so many lose as
 *   a race gives up, so from the second step on a step trains as many as it wants
 *
 * In the paper, the samples of a prompt race, too; here they do only where `oversample.samples` says so, as the first of a prompt's
 * samples are short ones.
 */
import { begunFor, type Oversampling } from "./tail-race.ts";

export type TailRound = {
  /** of those that wait, the first so many */
  readonly numLate: number;
  /** so many new prompts of that round, from 1 */
  readonly fresh: { readonly round: number; readonly count: number } | undefined;
};

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
  { prompts, lateJoin }: Pick<Oversampling, "prompts"> & { readonly lateJoin: boolean },
): TailRound {
  if (lateJoin) return { numLate, fresh: { round: step, count: numWanted } };
  if (numLate >= numWanted) return { numLate: numWanted, fresh: undefined };
  return { numLate: 0, fresh: { round: step - numLateSteps, count: begunFor(numWanted, prompts) } };
}
