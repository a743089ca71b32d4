import type { ReferenceStep } from "./algorithms/reference-step.ts";

/** A stretch of one environment's steps; fields as `Rollouts` has them. */
export type ReferenceTrajectory = {
  readonly rewards: ArrayLike<number>;
  readonly terminated: ArrayLike<number>;
  readonly truncated: ArrayLike<number>;
  /** what the critic said when the steps were taken: before each, of final observations, and after the last */
  readonly values: ArrayLike<number>;
  readonly finalValues: ArrayLike<number>;
  readonly lastValue: number;
  /** of the actions, under the policy that took them */
  readonly logprobs: ArrayLike<number>;
};

/** What a policy and its critic say of a trajectory's steps now, one entry a step. */
export type ReferenceControlScores = {
  readonly logprobs: ArrayLike<number>;
  readonly values: ArrayLike<number>;
  readonly entropies: ArrayLike<number>;
};

export type ReferenceControlOptions = {
  readonly discount: number;
  readonly lambda: number;
  readonly clip: number;
  readonly valueCoefficient: number;
  readonly valueClip?: number | undefined;
  readonly entropyCoefficient: number;
  /** true by default */
  readonly normaliseAdvantages?: boolean | undefined;
};

/**
 * What one optimiser step of PPO (arXiv:1707.06347) minimises over whole trajectories of control environments, in float64
 * and straight from the papers: generalised advantages as sums of discounted errors (arXiv:1506.02438), scaled over all
 * steps (`normaliseAdvantages`), then the mean of the clipped surrogate, the value's error and the entropy. It shares nothing with the shipped path;
 * tests compare the two, and its finite differences with the shipped gradient.
 */
export function referenceControlStep<T extends ReferenceTrajectory>(
  options: ReferenceControlOptions,
  trajectories: readonly T[],
  now: (trajectory: T) => ReferenceControlScores,
): ReferenceStep {
  const judged = trajectories.map((trajectory) => advantagesOf(trajectory, options));
  const all = judged.flat();
  if (all.length === 0) return { loss: 0, magnitude: 0 };
  // From the first value on, so that the mean of equal values has no rounding.
  const center = all[0]! + average(all.map((advantage) => advantage - all[0]!));
  const deviation = Math.sqrt(average(all.map((advantage) => (advantage - center) ** 2)));
  const terms = trajectories.flatMap((trajectory, index) => {
    const { logprobs, values, entropies } = now(trajectory);
    return judged[index]!.map((own, step) => {
      const advantage = options.normaliseAdvantages === false ? own : (own - center) / (deviation + 1e-6);
      const before = trajectory.values[step]!;
      const target = own + before;
      const ratio = Math.exp(clamp(logprobs[step]! - trajectory.logprobs[step]!, -20, 20));
      const bounded = clamp(ratio, 1 - options.clip, 1 + options.clip);
      const { valueClip = Number.POSITIVE_INFINITY } = options;
      const moved = before + clamp(values[step]! - before, -valueClip, valueClip);
      return [
        -Math.min(ratio * advantage, bounded * advantage),
        (options.valueCoefficient / 2) * Math.max((values[step]! - target) ** 2, (moved - target) ** 2),
        -options.entropyCoefficient * entropies[step]!,
      ];
    });
  });
  return {
    loss: average(terms.map(sum)),
    magnitude: average(terms.map((parts) => sum(parts.map(Math.abs)))),
  };
}

/** Of each step, before they are scaled. */
function advantagesOf(trajectory: ReferenceTrajectory, { discount, lambda }: ReferenceControlOptions): number[] {
  const { rewards, terminated, truncated, values, finalValues, lastValue } = trajectory;
  const numSteps = rewards.length;
  const endsAt = (step: number) => terminated[step] === 1 || truncated[step] === 1 || step === numSteps - 1;
  const errors = Array.from({ length: numSteps }, (_, step) => {
    let next = step === numSteps - 1 ? lastValue : values[step + 1]!;
    if (truncated[step] === 1) next = finalValues[step]!;
    if (terminated[step] === 1) next = 0;
    return rewards[step]! + discount * next - values[step]!;
  });
  return errors.map((_, step) => {
    const length = errors.slice(step).findIndex((_, later) => endsAt(step + later)) + 1;
    return sum(errors.slice(step, step + length).map((error, later) => (discount * lambda) ** later * error));
  });
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
const average = (values: readonly number[]): number => sum(values) / values.length;
const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);
