/** Random steps: groups as they come from rollouts at their worst, and what a policy says of them now. */
import type { Episode, EpisodeGroup } from "@treadle/contracts";
import type { Random } from "../random.ts";

/** Configurations of every algorithm, which between them use most of the keys that change a formula. */
export const configurations: readonly { readonly name: string; readonly [key: string]: unknown }[] = [
  { name: "grpo" },
  { name: "grpo", kl: { placement: "loss", coefficient: 0.04 }, deviation: "sample", entropyCoefficient: 0.01 },
  { name: "grpo", divideByStd: false, dropEqualRewards: false, dualClip: 3, normalisation: { type: "token-mean" } },
  { name: "dr-grpo", maxTokens: 7 },
  { name: "dr-grpo", kl: { placement: "loss", coefficient: 0.1 }, dropEqualRewards: true },
  { name: "dapo" },
  { name: "dapo", tokenMean: "group", kl: { placement: "loss", coefficient: 0.02 } },
  {
    name: "dapo",
    overlong: { maxTokens: 5, bufferTokens: 3 },
    maskTruncated: true,
    tokenMean: "group",
    entropyCoefficient: 0.02,
  },
  { name: "gspo" },
  { name: "gspo", clipLow: 0.2, clipHigh: 0.3, dualClip: 2, kl: { placement: "loss", coefficient: 0.2 } },
  { name: "cispo" },
  { name: "cispo", tokenMean: "group", deviation: "sample", overlong: { maxTokens: 4, bufferTokens: 2, penalty: 0.5 } },
  { name: "cispo", clipLow: 0.3, clipHigh: 0.5, kl: { placement: "loss", coefficient: 0.1, estimator: "k2" } },
  { name: "rloo" },
  { name: "rloo", kl: { placement: "reward", coefficient: 0.05 } },
  { name: "rloo", action: "token", kl: { placement: "loss", coefficient: 0.05 } },
  { name: "reinforce++" },
  { name: "reinforce++", kl: { placement: "reward", coefficient: 0.1, estimator: "k3" }, entropyCoefficient: 0.01 },
  { name: "reinforce++-baseline" },
  { name: "reinforce++-baseline", kl: { placement: "reward", coefficient: 0.02 }, dualClip: 3 },
  { name: "ppo" },
  { name: "ppo", truncation: "bootstrap", discount: 0.9 },
  { name: "ppo", kl: { placement: "loss", coefficient: 0.1 }, lambda: 0.9, discount: 0.95, dualClip: 3 },
  { name: "ppo", kl: { placement: "reward", coefficient: 0.1 }, normaliseAdvantages: false, valueClip: 0.5 },
];

/** What a policy says of an episode, one entry a token; NaN where the policy did not choose. */
export type RandomScores = {
  readonly logprobs: Float64Array;
  /** log-probability of each of the vocabulary's other entries */
  readonly others: Float64Array;
  readonly entropies: Float64Array;
  readonly values: Float64Array;
};

export type RandomStep = {
  readonly groups: readonly EpisodeGroup[];
  /** when the loss is taken */
  readonly now: ReadonlyMap<Episode, RandomScores>;
};

/** Widest episode, and tokens that there are; an episode's first token is its own. */
export const randomStepColumns = 12;
export const randomStepVocabulary = 40;
/** of the weights that a step begins with; some episodes were sampled by those before */
export const randomStepVersion = 1;

/** Entropy of a distribution of one chosen token and others that are alike. */
export function entropyOf(chosen: number, others: number): number {
  return -Math.exp(chosen) * chosen - (randomStepVocabulary - 1) * Math.exp(others) * others;
}

/**
 * Groups of one and of several, equal rewards, rewards of 1000 ± 0.1, tool tokens in between, rewards of turns, aborted and empty episodes,
 * episodes that inference has rescored, stale ones and those of another engine, ratios of e^±800, and NaN wherever the policy did not choose.
 */
export function randomStep(random: Random, { extreme }: { readonly extreme: boolean }): RandomStep {
  const now: Map<Episode, RandomScores> = new Map();
  const uniform = (low: number, high: number) => low + (high - low) * random.float();
  const pick = <T>(from: readonly T[]): T => from[random.integer(from.length)]!;
  const logprob = () => (extreme && random.float() < 0.1 ? -pick([20, 100, 800]) : uniform(-6, -0.01));
  let numEpisodes = 0;
  const groups = Array.from({ length: 1 + random.integer(4) }, (_, prompt): EpisodeGroup => {
    const rewardOf = pick([() => pick([0, 1]), () => 1, () => uniform(-3, 3), () => 1000 + uniform(-0.1, 0.1)]);
    const episodes = Array.from({ length: 1 + random.integer(5) }, (): Episode => {
      const promptLength = 1 + random.integer(3);
      const length = promptLength + (random.float() < 0.1 ? 0 : 1 + random.integer(randomStepColumns - promptLength));
      const mask = Float32Array.from({ length }, (_, token) =>
        token < promptLength || (token > promptLength && random.float() < 0.2) ? 0 : 1,
      );
      const chosen = (draw: () => number) => Float32Array.from(mask, (own) => (own === 1 ? draw() : Number.NaN));
      const doubles = (draw: () => number) => Float64Array.from(chosen(draw));
      const near = (from: Float32Array) =>
        from.map((own) =>
          extreme && random.float() < 0.1 ? logprob() : own < -7 ? own : Math.min(own + uniform(-0.7, 0.7), -0.001),
        );
      const logprobs = chosen(logprob);
      const isStale = random.float() < 0.3;
      const engine = pick([undefined, "scripted", "another"]);
      const oldLogprobs = random.float() < 0.5 ? near(logprobs) : undefined;
      // Apart from the other draws.
      const turns = random.split("turns").split(`${prompt}.${numEpisodes}`);
      const earns = turns.float() < 0.5 ? 0.4 : 0;
      const turnRewards = Array.from(mask.keys(), (token) => token + 1)
        .filter((end) => mask[end - 1] === 1 && turns.float() < earns)
        .map((end) => ({ end, reward: 4 * turns.float() - 2 }));
      const episode: Episode = {
        promptId: `${prompt}`,
        promptLength,
        tokens: Int32Array.from(mask, (_, token) =>
          token === 0 ? 2 + numEpisodes++ : 2 + random.integer(randomStepVocabulary - 2),
        ),
        mask,
        logprobs,
        temperature: pick([0.5, 1, 1.3]),
        policyVersions: new Int32Array(length).fill(isStale ? randomStepVersion - 1 : randomStepVersion),
        ...(engine && { engine }),
        finishReason: pick(["stop", "stop", "length", "abort"]),
        reward: rewardOf(),
        ...(turnRewards.length > 0 && { turnRewards }),
        ...(oldLogprobs && { oldLogprobs }),
        refLogprobs: chosen(() => uniform(-6, -0.01)),
        values: chosen(() => uniform(-1, 1)),
      };
      const scores = {
        logprobs: Float64Array.from(near(oldLogprobs ?? logprobs)),
        others: doubles(() => uniform(-6, -1)),
        values: doubles(() => uniform(-1, 1)),
      };
      const entropies = scores.logprobs.map((own, token) => entropyOf(own, scores.others[token]!));
      now.set(episode, { ...scores, entropies });
      return episode;
    });
    return { promptId: `${prompt}`, episodes };
  });
  return { groups, now };
}
