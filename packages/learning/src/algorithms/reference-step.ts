import type { Episode, EpisodeGroup } from "@treadle/contracts";
import type { WeightRule } from "../rollout-correction.ts";
import { type AlgorithmConfig, type KlConfig, parseAlgorithmConfig } from "./config.ts";

/** What a policy (and a critic) says of an episode's tokens, one entry a token. */
export type ReferenceScores = {
  readonly logprobs: ArrayLike<number>;
  /** of the distribution each token was predicted from; needed with an entropy bonus */
  readonly entropies?: ArrayLike<number> | undefined;
  /** the critic's value before each token; needed by ppo */
  readonly values?: ArrayLike<number> | undefined;
};

/**
 * What one step of an algorithm minimises, over all groups at once, in float64 and straight from the formulas of the
 * papers that the algorithms cite. It shares nothing with them but the configuration: no filter, no packing, no moments, no
 * loss description. Tests compare the shipped path with it, and finite differences of it with the shipped gradient.
 *
 * The ratio is against `oldLogprobs` where an episode has them, else against the sampler; the surrogate of the former is
 * times the importance weight of its action (a token; rloo's sequence: the product; gspo's: the geometric mean), of the token
 * or of the sequence, and beyond the correction's cap times that cap, or 0.
 */
export function referenceStep(
  given: unknown,
  groups: readonly EpisodeGroup[],
  now: (episode: Episode) => ReferenceScores,
  { held = now, correction }: ReferenceOptions,
): ReferenceStep {
  const config = parseAlgorithmConfig(given);
  const judged = groups.flatMap((group) => judgeGroup(config, group));
  standardise(config, judged);
  if (averagingOf(config) === "groups of tokens") return ofGroups(config, groups, now, { held, correction });
  const all = judged.map((one) =>
    termsOf(config, one, now(one.episode), held(one.episode), importanceOf(config, one, correction)),
  );
  return {
    loss: averaged(config, all),
    magnitude: averaged(
      config,
      all.map((terms) => terms.map(Math.abs)),
    ),
  };
}

/** The mean over groups that have anything to train on of the mean over their tokens. */
function ofGroups(config: AlgorithmConfig, groups: readonly EpisodeGroup[], ...rest: AfterGroups): ReferenceStep {
  const steps = groups
    .filter((group) => judgeGroup(config, group).length > 0)
    .map((group) => referenceStep({ ...config, tokenMean: "step" }, [group], ...rest));
  if (steps.length === 0) return { loss: 0, magnitude: 0 };
  return {
    loss: average(steps.map(({ loss }) => loss)),
    magnitude: average(steps.map(({ magnitude }) => magnitude)),
  };
}
type AfterGroups = [now: (episode: Episode) => ReferenceScores, options: ReferenceOptions];

export type ReferenceOptions = {
  /** the policy of what a formula holds constant (cispo's ratio); the same as `now` unless a derivative is taken */
  readonly held?: ((episode: Episode) => ReferenceScores) | undefined;
  readonly correction: WeightRule;
};

export type ReferenceStep = {
  readonly loss: number;
  /** the same average of the terms' absolute values: what rounding is relative to */
  readonly magnitude: number;
};

function averaged(config: AlgorithmConfig, terms: readonly (readonly number[])[]): number {
  if (terms.length === 0) return 0;
  switch (averagingOf(config)) {
    case "sequences of means":
      return average(terms.map(average));
    case "tokens":
    case "groups of tokens":
      return average(terms.flat());
    case "sequences of sums":
      return average(terms.map(sum)) / constantOf(config);
  }
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
const average = (values: readonly number[]): number => sum(values) / values.length;
/** From the first value on, so that the mean of equal values has no rounding. */
const centerOf = (values: readonly number[]): number => {
  const [first = 0] = values;
  return first + average(values.map((value) => value - first));
};
const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);
const ratioOf = (logRatio: number): number => Math.exp(clamp(logRatio, -20, 20));

/** An episode to train on: its policy's tokens, with an advantage (and for ppo a return) each. */
type Judged = {
  readonly episode: Episode;
  readonly at: readonly number[];
  advantages: number[];
  readonly returns?: readonly number[];
};

const tokensOf = ({ mask }: Episode): number[] => [...mask.keys()].filter((token) => mask[token] === 1);
const oldOf = (episode: Episode): Float32Array => episode.oldLogprobs ?? episode.logprobs;

/** KL penalties in the reward, one a token of the policy. */
function penalties(episode: Episode, kl: KlConfig): number[] {
  return tokensOf(episode).map((token) => {
    if (kl.placement !== "reward") return 0;
    const d = clamp(oldOf(episode)[token]! - episode.refLogprobs![token]!, -20, 20);
    return kl.coefficient * (kl.estimator === "k1" ? d : Math.exp(-d) - 1 + d);
  });
}

function judgeGroup(config: AlgorithmConfig, group: EpisodeGroup): Judged[] {
  const episodes = group.episodes.filter((episode) => episode.finishReason !== "abort" && tokensOf(episode).length > 0);
  const rewards = episodes.map(({ reward }) => reward);
  if (config.name === "ppo") return episodes.map((episode) => generalised(config, episode));
  if (config.name === "reinforce++-baseline" && episodes.length < 2) return [];
  if (config.name === "reinforce++" || config.name === "reinforce++-baseline") {
    return episodes.map((episode) => {
      const baseline = config.name === "reinforce++" ? 0 : centerOf(rewards);
      const own = penalties(episode, config.kl);
      const at = tokensOf(episode);
      const advantages = own.map((_, step) => earnedFrom(episode, at[step]!) - baseline - sum(own.slice(step)));
      return { episode, at, advantages };
    });
  }
  if (episodes.length < 2) return [];
  const drops = config.name === "dapo" || config.dropEqualRewards;
  const isInReward = config.kl.placement === "reward";
  const isFlat = drops && !isInReward && Math.max(...rewards) - Math.min(...rewards) <= 1e-8;
  if (isFlat && config.kl.placement === "none" && config.entropyCoefficient === 0) return [];
  const shaped = episodes.map((episode) => episode.reward + shaping(config, episode));
  const credits = shaped.map((reward, index) => {
    if (isFlat) return 0;
    if (config.name === "rloo") return reward - centerOf(shaped.filter((_, other) => other !== index));
    const center = centerOf(shaped);
    if (config.name === "dr-grpo" || (config.name !== "dapo" && !config.divideByStd)) return reward - center;
    const divisor = config.deviation === "sample" ? shaped.length - 1 : shaped.length;
    const deviation = Math.sqrt(sum(shaped.map((other) => (other - center) ** 2)) / divisor);
    return (reward - center) / (deviation + 1e-6);
  });
  return episodes.flatMap((episode, index) => {
    if (config.name === "dapo" && config.maskTruncated && episode.finishReason === "length") return [];
    const at = tokensOf(episode);
    return [{ episode, at, advantages: at.map(() => credits[index]!) }];
  });
}

/** What is still to be earned before a token: all, less what turns that ended before it have. */
const earnedFrom = ({ reward, turnRewards = [] }: Episode, token: number): number =>
  reward - sum(turnRewards.filter(({ end }) => end <= token).map((turn) => turn.reward));

/** What is added to an episode's reward. */
function shaping(config: AlgorithmConfig, episode: Episode): number {
  if (config.name === "rloo") return -sum(penalties(episode, config.kl));
  if ((config.name !== "dapo" && config.name !== "cispo") || !config.overlong) return 0;
  const { maxTokens, bufferTokens, penalty } = config.overlong;
  const over = tokensOf(episode).length - (maxTokens - bufferTokens);
  return -penalty * clamp(over / bufferTokens, 0, 1);
}

/** Sums of discounted one-step errors, term by term as arXiv:1506.02438 writes them. */
function generalised(config: Extract<AlgorithmConfig, { name: "ppo" }>, episode: Episode): Judged {
  const at = tokensOf(episode);
  const values = at.map((token) => episode.values![token]!);
  const rewards = penalties(episode, config.kl).map(
    (penalty, step) =>
      earnedFrom(episode, at[step]!) - (step === at.length - 1 ? 0 : earnedFrom(episode, at[step + 1]!)) - penalty,
  );
  const isCut = config.truncation === "bootstrap" && episode.finishReason === "length";
  const after = isCut ? (values.at(-1) ?? 0) : 0;
  const errors = at.map((_, step) => rewards[step]! + config.discount * (values[step + 1] ?? after) - values[step]!);
  const decay = config.discount * config.lambda;
  const advantages = errors.map((_, step) => sum(errors.slice(step).map((error, later) => decay ** later * error)));
  return { episode, at, advantages, returns: advantages.map((advantage, step) => advantage + values[step]!) };
}

function standardise(config: AlgorithmConfig, judged: readonly Judged[]): void {
  const isWhole =
    config.name === "ppo"
      ? config.normaliseAdvantages
      : config.name === "reinforce++" || config.name === "reinforce++-baseline";
  const all = judged.flatMap(({ advantages }) => advantages);
  if (!isWhole || all.length === 0) return;
  const center = centerOf(all);
  const deviation = Math.sqrt(average(all.map((advantage) => (advantage - center) ** 2)));
  for (const one of judged) one.advantages = one.advantages.map((value) => (value - center) / (deviation + 1e-6));
}

/** Of each token of the policy: the probability under the policy of the ratio over that under the sampler, truncated. */
function importanceOf(config: AlgorithmConfig, { episode, at }: Judged, { level, mode, cap }: WeightRule): number[] {
  if (episode.oldLogprobs === undefined) return at.map(() => 1);
  const logRatios = at.map((token) => episode.oldLogprobs![token]! - episode.logprobs[token]!);
  const isOneAction = level === "action" && config.name === "rloo" && config.action === "sequence";
  const logWeights = logRatios.map((own) => {
    if (level === "action" && config.name === "gspo") return average(logRatios);
    return isOneAction || level === "sequence" ? sum(logRatios) : own;
  });
  return logWeights.map(ratioOf).map((weight) => (weight > cap ? { truncate: cap, mask: 0 }[mode] : weight));
}

function termsOf(
  config: AlgorithmConfig,
  judged: Judged,
  now: ReferenceScores,
  held: ReferenceScores,
  importance: readonly number[],
): number[] {
  const { episode, at, advantages, returns } = judged;
  const old = oldOf(episode);
  const logRatios = at.map((token) => now.logprobs[token]! - old[token]!);
  return at.map((token, step) => {
    const advantage = advantages[step]!;
    const bounded = (ratio: number) => clamp(ratio, 1 - config.clipLow, 1 + config.clipHigh);
    let surrogate: number;
    if (config.name === "cispo") {
      surrogate = bounded(ratioOf(held.logprobs[token]! - old[token]!)) * advantage * now.logprobs[token]!;
    } else {
      let ratio = ratioOf(logRatios[step]!);
      if (config.name === "gspo") ratio = ratioOf(average(logRatios));
      if (config.name === "rloo" && config.action === "sequence") ratio = ratioOf(sum(logRatios));
      surrogate = Math.min(ratio * advantage, bounded(ratio) * advantage);
      if (config.dualClip !== undefined && advantage < 0) surrogate = Math.max(surrogate, config.dualClip * advantage);
    }
    let term = -importance[step]! * surrogate;
    if (config.kl.placement === "loss") {
      const d = clamp(now.logprobs[token]! - episode.refLogprobs![token]!, -20, 20);
      term += config.kl.coefficient * (config.kl.estimator === "k2" ? d ** 2 / 2 : Math.exp(-d) - 1 + d);
    }
    if (config.entropyCoefficient > 0) term -= config.entropyCoefficient * now.entropies![token]!;
    if (config.name === "ppo") {
      const [value, before, target] = [now.values![token]!, episode.values![token]!, returns![step]!];
      const moved = before + clamp(value - before, -config.valueClip, config.valueClip);
      term += (config.valueCoefficient / 2) * Math.max((value - target) ** 2, (moved - target) ** 2);
    }
    return term;
  });
}

type Averaging = "sequences of means" | "tokens" | "groups of tokens" | "sequences of sums";

function averagingOf(config: AlgorithmConfig): Averaging {
  switch (config.name) {
    case "gspo":
      return "sequences of means";
    case "dapo":
    case "cispo":
      return config.tokenMean === "step" ? "tokens" : "groups of tokens";
    case "dr-grpo":
      return "sequences of sums";
    case "rloo":
      return config.action === "sequence" ? "sequences of means" : "sequences of sums";
    default: {
      const names = { "sequence-mean": "sequences of means", "token-mean": "tokens", constant: "sequences of sums" };
      return names[config.normalisation.type] as Averaging;
    }
  }
}

function constantOf(config: AlgorithmConfig): number {
  if (config.name === "dr-grpo") return config.maxTokens;
  return "normalisation" in config && config.normalisation.type === "constant" ? config.normalisation.tokens : 1;
}
