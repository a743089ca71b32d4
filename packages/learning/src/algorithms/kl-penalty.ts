import { type Episode, maxLogRatio } from "@treadle/contracts";
import { invalid, oldLogprobsOf } from "../episode.ts";
import type { PolicyGradientLoss } from "./algorithm.ts";
import type { KlConfig } from "./config.ts";

/**
 * KL penalties of an episode's policy tokens, at `positions`: coefficient · estimate, to be taken off the reward. All
 * zero unless the KL is placed in the reward. Differences count as within ± `maxLogRatio`, as in the loss. The policy is the one the ratio is taken against.
 */
export function klPenalties(episode: Episode, positions: Int32Array, kl: KlConfig): Float64Array {
  if (kl.placement !== "reward") return new Float64Array(positions.length);
  const { refLogprobs } = episode;
  if (refLogprobs === undefined) {
    throw invalid(
      `episode of prompt '${episode.promptId}' has no refLogprobs and the KL penalty needs them: ` +
        "score episodes with the reference policy first, or set kl.placement to 'none'",
    );
  }
  const old = oldLogprobsOf(episode);
  return Float64Array.from(positions, (token) => {
    const difference = Math.min(Math.max(old[token]! - refLogprobs[token]!, -maxLogRatio), maxLogRatio);
    return kl.coefficient * (kl.estimator === "k1" ? difference : Math.exp(-difference) - 1 + difference);
  });
}

/** The loss that an algorithm's common keys describe. */
export function lossOf(
  config: {
    readonly clipLow: number;
    readonly clipHigh: number;
    readonly dualClip?: number | undefined;
    readonly entropyCoefficient: number;
    readonly kl: KlConfig;
  },
  { ratio = "token", surrogate = "clipped" }: Partial<Pick<PolicyGradientLoss, "ratio" | "surrogate">> = {},
): PolicyGradientLoss {
  return {
    type: "policy-gradient",
    ratio,
    surrogate,
    clipLow: config.clipLow,
    clipHigh: config.clipHigh,
    ...(config.dualClip === undefined ? {} : { dualClip: config.dualClip }),
    klCoefficient: config.kl.placement === "loss" ? config.kl.coefficient : 0,
    klEstimator: config.kl.placement === "loss" ? config.kl.estimator : "k3",
    entropyCoefficient: config.entropyCoefficient,
  };
}
