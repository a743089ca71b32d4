/** Random steps: groups as they come from rollouts at their worst, and what a policy says of them now. */
import type { Episode, EpisodeGroup } from "@treadle/contracts";
import {
  advantageMoments,
  createAlgorithm,
  normaliseAdvantages,
  packSamples,
  type Random,
  type ReferenceScores,
  referenceLoss,
  unpackEntries,
} from "../../src/index.ts";

/** Configurations that between them use every key that changes a formula. */
export const configurations: readonly { readonly name: string; readonly [key: string]: unknown }[] = [
  { name: "grpo" },
  { name: "grpo", kl: { placement: "loss", coefficient: 0.04 }, deviation: "sample", entropyCoefficient: 0.01 },
  { name: "grpo", divideByStd: false, dropEqualRewards: false, dualClip: 3, normalisation: { type: "token-mean" } },
  { name: "dr-grpo", maxTokens: 7 },
  { name: "dr-grpo", kl: { placement: "loss", coefficient: 0.1 }, dropEqualRewards: true },
  { name: "dapo" },
  { name: "dapo", overlong: { maxTokens: 5, bufferTokens: 3 }, maskTruncated: true, entropyCoefficient: 0.02 },
  { name: "gspo" },
  { name: "gspo", clipLow: 0.2, clipHigh: 0.3, dualClip: 2, kl: { placement: "loss", coefficient: 0.2 } },
  { name: "cispo" },
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

export type Step = {
  readonly groups: readonly EpisodeGroup[];
  readonly now: ReadonlyMap<Episode, { logprobs: Float64Array; entropies: Float64Array; values: Float64Array }>;
};

const columns = 12;

/**
 * Groups of one and of several, equal rewards, rewards of 1000 ± 0.1, tool tokens in between, aborted and empty episodes,
 * ratios of e^±800, and NaN wherever the policy did not choose.
 */
export function randomStep(random: Random, { extreme }: { readonly extreme: boolean }): Step {
  const now: Map<Episode, { logprobs: Float64Array; entropies: Float64Array; values: Float64Array }> = new Map();
  const uniform = (low: number, high: number) => low + (high - low) * random.float();
  const pick = <T>(from: readonly T[]): T => from[random.integer(from.length)]!;
  const groups = Array.from({ length: 1 + random.integer(4) }, (_, prompt): EpisodeGroup => {
    const rewardOf = pick([() => pick([0, 1]), () => 1, () => uniform(-3, 3), () => 1000 + uniform(-0.1, 0.1)]);
    const episodes = Array.from({ length: 1 + random.integer(5) }, (): Episode => {
      const promptLength = 1 + random.integer(3);
      const length = promptLength + (random.float() < 0.1 ? 0 : 1 + random.integer(columns - promptLength));
      const mask = Float32Array.from({ length }, (_, token) =>
        token < promptLength || (token > promptLength && random.float() < 0.2) ? 0 : 1,
      );
      const chosen = (draw: () => number) => Float32Array.from(mask, (own) => (own === 1 ? draw() : Number.NaN));
      const logprobs = chosen(() => uniform(-6, -0.01));
      const away = () => (extreme && random.float() < 0.1 ? pick([-800, -100, -30, 30, 100, 800]) : uniform(-0.7, 0.7));
      const near = (from: Float32Array) => from.map((logprob) => logprob + away());
      const oldLogprobs = random.float() < 0.5 ? near(logprobs) : undefined;
      const episode: Episode = {
        promptId: `${prompt}`,
        promptLength,
        tokens: Int32Array.from(mask, () => 2 + random.integer(8)),
        mask,
        logprobs,
        temperature: pick([0.5, 1, 1.3]),
        policyVersions: new Int32Array(length),
        finishReason: pick(["stop", "stop", "length", "abort"]),
        reward: rewardOf(),
        ...(oldLogprobs && { oldLogprobs }),
        refLogprobs: chosen(() => uniform(-6, -0.01)),
        values: chosen(() => uniform(-1, 1)),
      };
      const doubles = (draw: () => number) => Float64Array.from(mask, (own) => (own === 1 ? draw() : Number.NaN));
      now.set(episode, {
        logprobs: Float64Array.from(near(oldLogprobs ?? logprobs)),
        entropies: doubles(() => uniform(0, 2)),
        values: doubles(() => uniform(-1, 1)),
      });
      return episode;
    });
    return { promptId: `${prompt}`, episodes };
  });
  return { groups, now };
}

export type Gradients = Map<Episode, { readonly logprobs: Float32Array; readonly values: Float32Array }>;

/** The step as the actor packs it, each batch with what the policy says of it now. */
export function packedStep(config: unknown, { groups, now }: Step) {
  const algorithm = createAlgorithm(config);
  const raw = algorithm.advantages(algorithm.filter(groups).kept);
  const samples = algorithm.needsWholeBatch ? normaliseAdvantages(raw, advantageMoments(raw)) : raw;
  const packed = packSamples(samples, { ...algorithm, columns, maxRows: 3, paddingToken: 0 });
  const divisor = packed.reduce((total, batch) => total + batch.divisor, 0);
  const scored = packed.map(({ batch, sampleIndexes }) => {
    const rectangle = (name: keyof ReferenceScores) => {
      const filled = new Float64Array(batch.rows * columns).fill(Number.NaN);
      sampleIndexes.forEach((sample, row) => {
        filled.set(now.get(original(groups, samples[sample]!.episode))![name], row * columns);
      });
      return filled;
    };
    return { batch, logprobs: rectangle("logprobs"), entropies: rectangle("entropies"), values: rectangle("values") };
  });
  return { loss: algorithm.loss, samples, packed, divisor, scored };
}

/** The step as the actor takes it: filter, advantages, scaling, packing, the loss in float64, the divisor. */
export function shippedStep(config: unknown, step: Step): { loss: number; gradients: Gradients } {
  const { loss: spec, samples, packed, divisor, scored } = packedStep(config, step);
  const losses = scored.map(({ batch, logprobs, entropies, values }) =>
    referenceLoss(spec, batch, logprobs, entropies, values),
  );
  const slopesOf = (name: "gradient" | "valueGradient") =>
    unpackEntries(
      packed,
      losses.map((loss) => loss[name].map((slope) => slope / divisor)),
      samples.length,
    );
  const [logprobs, values] = [slopesOf("gradient"), slopesOf("valueGradient")];
  const gradients: Gradients = new Map(
    samples.map(({ episode }, index) => [
      original(step.groups, episode),
      { logprobs: logprobs[index]!, values: values[index]! },
    ]),
  );
  const total = losses.reduce((sum, { metrics }) => sum + metrics.loss, 0);
  return { loss: divisor === 0 ? 0 : total / divisor, gradients };
}

/** Samples have the episodes that went in. */
function original(groups: readonly EpisodeGroup[], episode: Episode): Episode {
  for (const group of groups) if (group.episodes.includes(episode)) return episode;
  throw new Error("a sample's episode is none of those given");
}
