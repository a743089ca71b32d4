import type { Episode, EpisodeGroup } from "@treadle/contracts";
import { checkGroups, countPolicyTokens } from "../episode.ts";
import {
  type Algorithm,
  type Normalisation,
  type PolicyGradientLoss,
  policyTokenPositions,
  spreadOverTokens,
} from "./algorithm.ts";
import { type AlgorithmConfigOf, minGroupSizeOf } from "./config.ts";
import { filterGroups, refuseSmallGroup, rewardsAreEqual } from "./filter.ts";
import { klPenalties, lossOf } from "./kl-penalty.ts";
import { momentsOf, stdEpsilon } from "./normalise.ts";

/**
 * GRPO: "DeepSeekMath", arXiv:2402.03300.
 *
 *     A_i = (r_i − mean(r)) / (std(r) + 1e-6)    over the rewards r of the prompt's group, the same for every token
 *
 * The loss is PPO's clipped one, averaged over a sequence and then over sequences.
 */
export function grpo(config: AlgorithmConfigOf<"grpo">): Algorithm {
  return groupRelative(config, config.normalisation, {
    rewardOf: (episode) => episode.reward,
    credit: (rewards) => relativeToMean(rewards, config),
    dropEqualRewards: config.dropEqualRewards,
  });
}

/**
 * Dr. GRPO: "Understanding R1-Zero-Like Training: A Critical Perspective", arXiv:2503.20783. GRPO without its biases for
 * easy questions (no division by the deviation) and short answers (a sequence's sum over tokens is divided by a constant,
 * the generation budget).
 */
export function drGrpo(config: AlgorithmConfigOf<"dr-grpo">): Algorithm {
  return groupRelative(
    config,
    { type: "constant", tokens: config.maxTokens },
    {
      rewardOf: (episode) => episode.reward,
      credit: (rewards) => relativeToMean(rewards, { divideByStd: false, deviation: "population" }),
      dropEqualRewards: config.dropEqualRewards,
    },
  );
}

/**
 * CISPO: "MiniMax-M1", arXiv:2506.13585. Advantages as GRPO; a token's importance ratio is clipped and held constant, and
 * multiplies the advantage and the log-probability, so that no token's gradient vanishes (`tokenMean` as in DAPO):
 *
 *     term = −clip(ρ, 1 − clipLow, 1 + clipHigh) · A · log π        averaged over the tokens of the step
 *
 * Dynamic sampling and the punishment of overlong answers are DAPO's.
 */
export function cispo(config: AlgorithmConfigOf<"cispo">): Algorithm {
  return groupRelative(config, tokenMeanOver(config.tokenMean), {
    rewardOf: (episode) => shapedReward(episode, config),
    credit: (rewards) => relativeToMean(rewards, config),
    dropEqualRewards: config.dropEqualRewards,
    loss: { surrogate: "cispo" },
  });
}

/**
 * GSPO: "Group Sequence Policy Optimization", arXiv:2507.18071. Advantages as GRPO; the importance ratio is that of the
 * whole sequence, exp(mean over its tokens of the log-ratio), so the clip range is two orders of magnitude narrower.
 * Every token of a sequence has the same term, so `sequence-mean` is the paper's objective.
 */
export function gspo(config: AlgorithmConfigOf<"gspo">): Algorithm {
  return groupRelative(
    config,
    { type: "sequence-mean" },
    {
      rewardOf: (episode) => episode.reward,
      credit: (rewards) => relativeToMean(rewards, config),
      dropEqualRewards: config.dropEqualRewards,
      loss: { ratio: "sequence" },
    },
  );
}

/**
 * DAPO: "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv:2503.14476. GRPO's advantages with:
 * clip-higher (`clipHigh` > `clipLow`, so that unlikely tokens can grow); dynamic sampling (groups with equal rewards are
 * dropped); the mean over tokens instead of sequences; and overlong reward shaping: for a completion of n policy tokens
 *
 *     reward += penalty · 0                                        n ≤ maxTokens − bufferTokens
 *     reward += penalty · ((maxTokens − bufferTokens) − n) / bufferTokens    in between
 *     reward −= penalty                                            n > maxTokens
 *
 * The paper takes the token mean within a group, as `tokenMean: group` does; by default it is over the whole step, which is
 * the same up to the weight of groups with longer answers. Sampling until enough groups remain is the workflow's part; `filter` counts them.
 */
export function dapo(config: AlgorithmConfigOf<"dapo">): Algorithm {
  return groupRelative(config, tokenMeanOver(config.tokenMean), {
    rewardOf: (episode) => shapedReward(episode, config),
    credit: (rewards) => relativeToMean(rewards, { divideByStd: true, deviation: config.deviation }),
    dropEqualRewards: true,
    maskTruncated: config.maskTruncated,
  });
}

const shapedReward = (episode: Episode, { overlong }: AlgorithmConfigOf<"dapo" | "cispo">): number =>
  episode.reward + (overlong === undefined ? 0 : overlongReward(countPolicyTokens(episode), overlong));

const tokenMeanOver = (of: "step" | "group"): Normalisation => ({
  type: of === "step" ? "token-mean" : "group-token-mean",
});

/** DAPO's soft overlong punishment, in [−penalty, 0], for a completion of `tokens` tokens. */
export function overlongReward(
  tokens: number,
  overlong: { readonly maxTokens: number; readonly bufferTokens: number; readonly penalty: number },
): number {
  const unpunished = overlong.maxTokens - overlong.bufferTokens;
  if (tokens <= unpunished) return 0;
  if (tokens > overlong.maxTokens) return -overlong.penalty;
  return (overlong.penalty * (unpunished - tokens)) / overlong.bufferTokens;
}

/**
 * RLOO: "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
 * arXiv:2402.14740. The baseline of an episode is the mean of the *others*, so it is unbiased:
 *
 *     A_i = r_i − (sum of r − r_i) / (n − 1)
 *
 * With the KL in the reward, r_i is the reward minus the sum of the episode's KL penalties. A sequence is one action, as in
 * the paper and TRL: its ratio is the product of its tokens' and is clipped as a whole, and each sequence counts once.
 * `action: token` has PPO's ratio and clip for each token, summed over the sequence's tokens; on fresh episodes, where
 * every ratio is 1, both have the same gradient.
 */
export function rloo(config: AlgorithmConfigOf<"rloo">): Algorithm {
  const bySequence = config.action === "sequence";
  return groupRelative(config, bySequence ? { type: "sequence-mean" } : { type: "constant", tokens: 1 }, {
    loss: { ratio: bySequence ? "sequence-product" : "token" },
    rewardOf: (episode) =>
      klPenalties(episode, policyTokenPositions(episode), config.kl).reduce(
        (reward, penalty) => reward - penalty,
        episode.reward,
      ),
    credit: (rewards) => {
      // The same as against the mean of the others, and exactly 0 where all are equal.
      const distance = rewards.length / (rewards.length - 1);
      const { mean } = momentsOf(rewards);
      return rewards.map((reward) => (reward - mean) * distance);
    },
    // With the KL in the reward, equal rewards no longer mean equal returns.
    dropEqualRewards: config.dropEqualRewards && config.kl.placement !== "reward",
  });
}

/**
 * `population` divides squares by n: the group is the whole population that is normalised. `sample` divides by n − 1, whose
 * advantages are smaller by sqrt((n − 1) / n). Equal rewards, however large, have advantages of exactly 0.
 */
function relativeToMean(
  rewards: readonly number[],
  { divideByStd, deviation }: { readonly divideByStd: boolean; readonly deviation: "population" | "sample" },
): number[] {
  const { count, mean, squares } = momentsOf(rewards);
  const divisor = deviation === "population" ? count : Math.max(1, count - 1);
  const scale = divideByStd ? Math.sqrt(squares / divisor) + stdEpsilon : 1;
  return rewards.map((reward) => (reward - mean) / scale);
}

type GroupRule = {
  /** shaped reward of one episode */
  readonly rewardOf: (episode: Episode) => number;
  /** advantages of a group from its shaped rewards */
  readonly credit: (rewards: readonly number[]) => number[];
  readonly dropEqualRewards: boolean;
  readonly maskTruncated?: boolean;
  readonly loss?: Partial<Pick<PolicyGradientLoss, "ratio" | "surrogate">>;
};

function groupRelative(
  config: AlgorithmConfigOf<"grpo" | "dr-grpo" | "gspo" | "cispo" | "dapo" | "rloo">,
  normalisation: Normalisation,
  rule: GroupRule,
): Algorithm {
  const loss = lossOf(config, rule.loss);
  const minEpisodes = minGroupSizeOf(config.name);
  const hasOtherTerms = loss.klCoefficient > 0 || loss.entropyCoefficient > 0;
  const equalRewards = !rule.dropEqualRewards ? "train" : hasOtherTerms ? "keep-other-terms" : "drop";
  return {
    config,
    loss,
    normalisation,
    needsWholeBatch: false,
    needsReference: config.kl.placement !== "none",
    needsValues: false,
    filter: (groups) => filterGroups(groups, { minEpisodes, equalRewards, maskTruncated: rule.maskTruncated }),
    advantages(groups: readonly EpisodeGroup[]) {
      checkGroups(groups);
      return groups.flatMap((group) => {
        refuseSmallGroup(group, config.name);
        const { episodes } = group;
        const isFlat = equalRewards === "keep-other-terms" && rewardsAreEqual(episodes);
        const advantages = isFlat ? episodes.map(() => 0) : rule.credit(episodes.map(rule.rewardOf));
        const isTrained = ({ finishReason }: Episode) => !(rule.maskTruncated && finishReason === "length");
        const groupTokens = episodes.filter(isTrained).reduce((sum, episode) => sum + countPolicyTokens(episode), 0);
        return episodes.flatMap((episode, index) =>
          isTrained(episode)
            ? [{ episode, advantages: spreadOverTokens(episode, advantages[index]!), groupTokens }]
            : [],
        );
      });
    },
  };
}
