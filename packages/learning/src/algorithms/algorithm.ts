import type { Episode, EpisodeGroup, LossSpec } from "@treadle/contracts";
import { countPolicyTokens } from "../episode.ts";
import type { AlgorithmConfig } from "./config.ts";
import type { FilterResult } from "./filter.ts";

export type PolicyGradientLoss = Extract<LossSpec, { type: "policy-gradient" }>;

/**
 * How the terms of tokens become one number. An engine sums `weight · term` over the entries of a batch; gradients of
 * several batches add up; the actor scales the sum once, in `optimStep`, by 1 / (sum of the batches' divisors). So a
 * weight depends on its own sequence or group alone, never on chunks that come later, and any chunking gives the same step.
 *
 * | type               | weight of a token  | adds to the divisor     | the step minimises                                  |
 * | ------------------ | ------------------ | ----------------------- | --------------------------------------------------- |
 * | `sequence-mean`    | 1 / policy tokens  | 1                       | mean over sequences of the mean over tokens         |
 * | `token-mean`       | 1                  | policy tokens           | mean over all tokens of the step                    |
 * | `group-token-mean` | 1 / group's tokens | policy / group's tokens | mean over groups of the mean over their tokens      |
 * | `constant`         | 1 / `tokens`       | 1                       | mean over sequences of (sum over tokens) / `tokens` |
 *
 * For the first three the divisor *is* the total weight. For `constant` it is not: dividing by the total weight would turn
 * it into `token-mean`, so the actor uses the divisor that comes with each packed batch.
 */
export type Normalisation =
  | { readonly type: "sequence-mean" }
  | { readonly type: "token-mean" }
  | { readonly type: "group-token-mean" }
  | { readonly type: "constant"; readonly tokens: number };

/**
 * Weight of each policy token of a sequence with `policyTokens` of them, and what the sequence adds to the divisor;
 * `groupTokens` are those of all of its group's episodes that are trained on.
 */
export function sequenceWeight(
  normalisation: Normalisation,
  policyTokens: number,
  groupTokens: number = policyTokens,
): { readonly tokenWeight: number; readonly divisor: number } {
  if (policyTokens === 0) return { tokenWeight: 0, divisor: 0 };
  switch (normalisation.type) {
    case "sequence-mean":
      return { tokenWeight: 1 / policyTokens, divisor: 1 };
    case "token-mean":
      return { tokenWeight: 1, divisor: policyTokens };
    case "group-token-mean":
      return { tokenWeight: 1 / groupTokens, divisor: policyTokens / groupTokens };
    case "constant":
      return { tokenWeight: 1 / normalisation.tokens, divisor: 1 };
  }
}

/**
 * An episode with what it is trained on. Arrays have one entry for each of the episode's tokens; entry t belongs to the
 * choice of token t and is 0 where the policy did not choose. In float64 until it is packed: rewards of 1000 ± 0.1 would
 * have lost three digits of their differences.
 */
export type TrainSample = {
  readonly episode: Episode;
  readonly advantages: Float64Array;
  /** policy tokens of its group's samples together; only from algorithms that compare within groups */
  readonly groupTokens?: number | undefined;
  /** what a critic regresses to, and its estimates when the episode was collected; only from PPO */
  readonly returns?: Float64Array | undefined;
  readonly oldValues?: Float32Array | undefined;
};

/**
 * A policy-gradient algorithm as the actor uses it. Pure: equal groups give equal samples, and samples of a group depend
 * on that group alone, so the actor may pass groups in any chunks, as they arrive.
 *
 * With `needsWholeBatch` false the samples are ready to be trained on. With it true their advantages have still to be
 * scaled over all policy tokens of the step, on all ranks: `advantageMoments`, merged, then `normaliseAdvantages`.
 */
export interface Algorithm {
  readonly config: AlgorithmConfig;
  readonly loss: PolicyGradientLoss;
  readonly normalisation: Normalisation;
  readonly needsWholeBatch: boolean;
  /** episodes must have `refLogprobs` before `advantages` (KL in the reward) or the loss (KL in the loss) */
  readonly needsReference: boolean;
  /** episodes must have a critic's `values` before `advantages` */
  readonly needsValues: boolean;
  /** Groups worth training on, without aborted and empty episodes, and how many went for which reason. */
  filter(groups: readonly EpisodeGroup[]): FilterResult;
  /**
   * One sample for each episode to train on, in order. Throws `learning.invalid-batch` when a group is too small for the
   * algorithm (`filter` removes such groups), when an episode is malformed, or when the reference or values are missing.
   */
  advantages(groups: readonly EpisodeGroup[]): TrainSample[];
}

/** Gives every policy token of the episode the same advantage. */
export function spreadOverTokens(episode: Episode, advantage: number): Float64Array {
  const spread = new Float64Array(episode.mask.length);
  for (let token = 0; token < spread.length; token++) if (episode.mask[token] !== 0) spread[token] = advantage;
  return spread;
}

/** Positions of the tokens that the policy chose. */
export function policyTokenPositions(episode: Episode): Int32Array {
  const positions = new Int32Array(countPolicyTokens(episode));
  let next = 0;
  for (let token = 0; token < episode.mask.length; token++) {
    if (episode.mask[token] !== 0) positions[next++] = token;
  }
  return positions;
}
