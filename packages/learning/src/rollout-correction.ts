import { type Episode, maxLogRatio } from "@treadle/contracts";
import { z } from "zod";
import { type PolicyGradientLoss, policyTokenPositions, type TrainSample } from "./algorithms/algorithm.ts";

/** What makes up for tokens that another policy has sampled than the one that the ratio is taken against. */
export const RolloutCorrectionConfig = z.strictObject({
  /**
   * whose probability under the trained policy, over that under the sampler, is the weight of an advantage: a `token`'s, its
   * whole `sequence`'s (the product), or that of what the algorithm's own ratio is of (`action`: rloo's product, gspo's
   * geometric mean, a token elsewhere)
   */
  level: z.enum(["action", "token", "sequence"]).default("action"),
  /** of a weight beyond `cap`: it counts as `cap`, or as 0, so that its tokens teach nothing */
  mode: z.enum(["truncate", "mask"]).default("truncate"),
  /** largest weight */
  cap: z.number().positive().default(2),
  /** nats a token between sampler and trained policy, in the mean of a step, beyond which the step warns and keeps its episodes */
  alarm: z.number().positive().default(0.1),
  /** alarms whose episodes are kept in the run's folder, the first of each start of the actor; 0: none */
  keptBatches: z.int().nonnegative().default(3),
  /** most MiB that a rank keeps of one; of a larger one those whose sampler and trained policy are furthest apart */
  keptMebibytes: z.number().positive().max(64).default(16),
});
export type RolloutCorrectionConfig = z.infer<typeof RolloutCorrectionConfig>;

/** What is done to weights. */
export type WeightRule = Pick<RolloutCorrectionConfig, "level" | "mode" | "cap">;

/** How far sampler and trained policy are apart, summed over the tokens that another policy has sampled. */
export type Mismatch = {
  readonly tokens: number;
  /** of weights before they are cut; their mean is 1 where the policies agree */
  readonly weights: number;
  readonly squaredWeights: number;
  /** tokens whose weight was beyond the cap */
  readonly cut: number;
  /** of the k3 estimate of the divergence of the trained policy from the sampler, in nats: `r - 1 - log r` of a token's ratio r */
  readonly kl: number;
  /** the largest of one token */
  readonly maxKl: number;
};

export type CorrectedSamples = {
  readonly samples: TrainSample[];
  readonly mismatch: Mismatch;
  /** of each sample the mean over its tokens of what `Mismatch.kl` sums up; 0 for what nobody has rescored */
  readonly meanKl: readonly number[];
};

/**
 * Corrects for tokens that were sampled by another policy than the one the ratio is taken against (older weights, or the
 * same weights in an engine with other kernels). Advantages are multiplied by the probability under the latter over that
 * under the former, of a token, or of the sequence, for all of its tokens:
 *
 *     token:      exp(old − sampled)
 *     sequence:   exp(sum over the sequence of (old − sampled))
 *     action:     as `token`; as `sequence` where the algorithm's ratio is a product (RLOO); and for GSPO its own mean:
 *                 exp(mean over the sequence of (old − sampled))
 *
 * A weight beyond `cap` is cut to it, or to 0. A product of cut token weights is not the cut weight of the product, so a
 * sequence is cut once. Log-ratios count as within ± `maxLogRatio`, as in the loss.
 *
 * Sources: the truncated weight of IMPALA (arXiv:1802.01561), as the behaviour weight of AReaL's decoupled objective
 * (arXiv:2505.24298), which is per token. TRL's GRPO has the four of token and sequence, truncated and masked
 * (`vllm_importance_sampling_mode`), with a cap of 3; verl's rollout correction (`rollout_is`) truncates by token or
 * sequence. The mean for GSPO is that of its own ratio.
 *
 * The clipped surrogate is linear in a factor of the advantage that is not negative, so engines need to know nothing;
 * weights, the divisor, the KL term and a critic's returns stay as they are. Episodes that needed no score have no
 * `oldLogprobs`; their ratio is against the sampler itself, and they stay as they are.
 */
export function correctRollout(
  samples: readonly TrainSample[],
  { level, mode, cap }: WeightRule,
  ratio: PolicyGradientLoss["ratio"],
): CorrectedSamples {
  const sums = { tokens: 0, weights: 0, squaredWeights: 0, cut: 0, kl: 0, maxKl: 0 };
  const cutTo = mode === "mask" ? 0 : cap;
  const weightLevel = levelOf(level, ratio);
  const meanKl = samples.map(() => 0);
  const corrected = samples.map((sample, index) => {
    const { episode } = sample;
    if (episode.oldLogprobs === undefined) return sample;
    const logRatios = Float64Array.from(episode.oldLogprobs, (old, token) => old - episode.logprobs[token]!);
    const weights = weightsOf(episode, logRatios, weightLevel);
    const before = { tokens: sums.tokens, kl: sums.kl };
    const advantages = sample.advantages.map((advantage, token) => {
      if (episode.mask[token] === 0) return 0;
      const weight = weights[token]!;
      const kl = divergenceOf(logRatios[token]!);
      sums.tokens += 1;
      sums.weights += weight;
      sums.squaredWeights += weight * weight;
      sums.kl += kl;
      sums.maxKl = Math.max(sums.maxKl, kl);
      if (weight <= cap) return advantage * weight;
      sums.cut += 1;
      return advantage * cutTo;
    });
    meanKl[index] = (sums.kl - before.kl) / Math.max(1, sums.tokens - before.tokens);
    return { ...sample, advantages };
  });
  return { samples: corrected, mismatch: sums, meanKl };
}

type WeightLevel = "token" | "product" | "mean";

function levelOf(level: WeightRule["level"], ratio: PolicyGradientLoss["ratio"]): WeightLevel {
  if (level === "token" || (level === "action" && ratio === "token")) return "token";
  return level === "action" && ratio === "sequence" ? "mean" : "product";
}

/** One weight a token, before it is cut; what stands where the policy did not choose is never used. */
function weightsOf(episode: Episode, logRatios: Float64Array, level: WeightLevel): Float64Array {
  const weightOf = (logRatio: number) => Math.exp(clamp(logRatio));
  if (level === "token") return logRatios.map(weightOf);
  const positions = policyTokenPositions(episode);
  const sum = positions.reduce((all, token) => all + logRatios[token]!, 0);
  return new Float64Array(logRatios.length).fill(weightOf(level === "mean" ? sum / positions.length : sum));
}

/** The k3 estimate of one token, in nats, of how much more probable another policy finds it. Never below 0, where rounding would have it. */
export function divergenceOf(logRatio: number): number {
  const bounded = clamp(logRatio);
  return Math.max(0, Math.expm1(bounded) - bounded);
}
const clamp = (logRatio: number): number => Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio);
