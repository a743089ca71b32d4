import { invalid } from "./episode.ts";

/**
 * A stretch of `steps` steps in each of `environments` parallel environments. Arrays are row-major
 * `[steps, environments]`: entry `t * environments + e`.
 *
 * `terminated` and `truncated` follow Gymnasium: *terminated* means the task itself ended after this step, so nothing
 * is worth anything afterwards; *truncated* means only our patience did (a time limit), so the value of what would have
 * followed still counts. Where both are set, terminated wins. Environments are expected to reset at once, so
 * `values[t + 1]` after a finished step belongs to the *next* episode and is never used for this one.
 */
export type Rollouts = {
  readonly steps: number;
  readonly environments: number;
  readonly rewards: ArrayLike<number>;
  /** the critic's value of the observation that the step's action was chosen on */
  readonly values: ArrayLike<number>;
  readonly terminated: ArrayLike<number>;
  readonly truncated: ArrayLike<number>;
  /** `[environments]`: value of the observation after the last step; unused where the last step finished an episode */
  readonly lastValues: ArrayLike<number>;
  /** `[steps, environments]`: value of the final observation of an episode; read only where `truncated`, needed if any is */
  readonly finalValues?: ArrayLike<number> | undefined;
};

export type GaeOptions = { readonly discount: number; readonly lambda: number };

/**
 * Generalised advantage estimation ("High-Dimensional Continuous Control Using Generalized Advantage Estimation",
 * arXiv:1506.02438):
 *
 *     next_t  = 0 if terminated, final value if truncated, value of step t + 1 otherwise
 *     delta_t = reward_t + discount · next_t − value_t
 *     A_t     = delta_t + discount · lambda · A_{t+1}    (the second part only while the episode goes on)
 *     return_t = A_t + value_t
 *
 * lambda 1 gives the discounted return minus the value; lambda 0 the one-step error.
 * Computed in float64. Throws `learning.invalid-batch` on wrong lengths, or a truncation without `finalValues`.
 */
export function generalisedAdvantages(
  rollouts: Rollouts,
  options: GaeOptions,
): { readonly advantages: Float64Array; readonly returns: Float64Array } {
  const { steps, environments, rewards, values, terminated, truncated, lastValues, finalValues } = rollouts;
  const entries = steps * environments;
  requireLength("rewards", rewards, entries);
  requireLength("values", values, entries);
  requireLength("terminated", terminated, entries);
  requireLength("truncated", truncated, entries);
  requireLength("lastValues", lastValues, environments);
  if (finalValues !== undefined) requireLength("finalValues", finalValues, entries);

  const advantages = new Float64Array(entries);
  const returns = new Float64Array(entries);
  for (let environment = 0; environment < environments; environment++) {
    let nextValue = lastValues[environment]!;
    let nextAdvantage = 0;
    for (let step = steps - 1; step >= 0; step--) {
      const at = step * environments + environment;
      if (terminated[at]) {
        nextValue = 0;
        nextAdvantage = 0;
      } else if (truncated[at]) {
        if (finalValues === undefined) {
          throw invalid(
            `step '${step}' of environment '${environment}' is truncated and there are no finalValues: ` +
              "pass the critic's value of each final observation",
          );
        }
        nextValue = finalValues[at]!;
        nextAdvantage = 0;
      }
      const delta = rewards[at]! + options.discount * nextValue - values[at]!;
      const advantage = delta + options.discount * options.lambda * nextAdvantage;
      advantages[at] = advantage;
      returns[at] = advantage + values[at]!;
      nextValue = values[at]!;
      nextAdvantage = advantage;
    }
  }
  return { advantages, returns };
}

function requireLength(name: string, array: ArrayLike<number>, expected: number): void {
  if (array.length !== expected) {
    throw invalid(`${name} has '${array.length}' entries: allowed is '${expected}' (steps × environments, row-major)`);
  }
}
