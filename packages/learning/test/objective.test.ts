import { describe, expect, test } from "vitest";
import {
  advantageMoments,
  createAlgorithm,
  createRandom,
  normaliseAdvantages,
  packSamples,
  type Random,
  referenceLoss,
} from "../src/index.ts";
import { makeEpisode } from "../src/testing/index.ts";

/**
 * The pieces together: advantages, packing and the reference loss train a table of logits, and what they minimise is the
 * objective as the papers write it.
 */
const vocabularySize = 4;
const answerTokens = 2;
const contexts = 2;

/** A softmax policy with logits for every prompt and position. */
class TablePolicy {
  readonly logits = new Float64Array(contexts * answerTokens * vocabularySize);

  logprobs(prompt: number, position: number): number[] {
    const start = (prompt * answerTokens + position) * vocabularySize;
    const logits = [...this.logits.subarray(start, start + vocabularySize)];
    const normaliser = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
    return logits.map((logit) => logit - normaliser);
  }

  sample(prompt: number, random: Random) {
    const tokens = [prompt];
    const logprobs = [0];
    for (let position = 0; position < answerTokens; position++) {
      const choices = this.logprobs(prompt, position);
      let rest = random.float();
      let token = 0;
      while (token < vocabularySize - 1 && rest >= Math.exp(choices[token]!)) rest -= Math.exp(choices[token++]!);
      tokens.push(token);
      logprobs.push(choices[token]!);
    }
    // The right answer to prompt p is p + 1 twice; each right token earns a half.
    const reward = tokens.slice(1).filter((token) => token === prompt + 1).length / answerTokens;
    return makeEpisode({
      promptId: String(prompt),
      tokens: Int32Array.from(tokens),
      logprobs: Float32Array.from(logprobs),
      refLogprobs: Float32Array.of(0, -Math.log(vocabularySize), -Math.log(vocabularySize)),
      values: Float32Array.of(0, 0.5, 0.5),
      reward,
    });
  }

  /** One step against d loss / d log-probabilities: the softmax's gradient is (1 at the token) − probabilities. */
  descend(tokens: Int32Array, columns: number, gradient: Float64Array, rate: number): void {
    gradient.forEach((slope, entry) => {
      if (slope === 0) return;
      const prompt = tokens[entry - (entry % columns)]!;
      const position = (entry % columns) - 1;
      const start = (prompt * answerTokens + position) * vocabularySize;
      this.logprobs(prompt, position).forEach((logprob, token) => {
        const chosen = token === tokens[entry] ? 1 : 0;
        this.logits[start + token]! -= rate * slope * (chosen - Math.exp(logprob));
      });
    });
  }
}

const configs = [
  { config: { name: "grpo" }, rate: 2 },
  { config: { name: "grpo", divideByStd: false, normalisation: { type: "constant", tokens: 2 } }, rate: 8 },
  { config: { name: "dapo" }, rate: 2 },
  { config: { name: "gspo" }, rate: 2 },
  { config: { name: "rloo" }, rate: 4 },
  { config: { name: "reinforce++" }, rate: 2 },
  { config: { name: "ppo" }, rate: 2 },
];

test.each(configs)("$config.name raises the reward of a policy that samples its own episodes", ({ config, rate }) => {
  const algorithm = createAlgorithm(config);
  const policy = new TablePolicy();
  const random = createRandom("objective");
  const meanRewards: number[] = [];
  for (let step = 0; step < 60; step++) {
    const groups = Array.from({ length: contexts }, (_, prompt) => ({
      promptId: String(prompt),
      episodes: Array.from({ length: 16 }, () => policy.sample(prompt, random)),
    }));
    const rewards = groups.flatMap(({ episodes }) => episodes.map(({ reward }) => reward));
    meanRewards.push(rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length);
    const raw = algorithm.advantages(algorithm.filter(groups).kept);
    const samples = algorithm.needsWholeBatch ? normaliseAdvantages(raw, advantageMoments(raw)) : raw;
    const packed = packSamples(samples, {
      ...algorithm,
      contextLength: 3,
      microBatchTokens: 15,
      paddingToken: 0,
      vocabularySize,
    });
    const divisor = packed.reduce((sum, batch) => sum + batch.divisor, 0);
    const steps = packed.map(({ batch }) => {
      const newLogprobs = Float64Array.from(batch.tokens, (token, entry) =>
        entry % 3 === 0 ? 0 : policy.logprobs(batch.tokens[entry - (entry % 3)]!, (entry % 3) - 1)[token]!,
      );
      const { gradient } = referenceLoss(algorithm.loss, batch, newLogprobs, undefined, batch.oldValues);
      return { tokens: batch.tokens, gradient };
    });
    for (const { tokens, gradient } of steps) policy.descend(tokens, 3, gradient, rate / divisor);
  }
  expect(meanRewards[0]).toBeLessThan(0.45);
  expect(meanRewards.slice(-5).reduce((sum, reward) => sum + reward, 0) / 5).toBeGreaterThan(0.9);
});

describe("what a step minimises", () => {
  const logprobs = Float32Array.of(0, -1, -1, -1);
  const short = makeEpisode({ reward: 1, policyTokens: 1, logprobs: logprobs.slice(0, 2) });
  const long = makeEpisode({ reward: 0, policyTokens: 3, logprobs });
  const groups = [{ promptId: "prompt", episodes: [short, long] }];

  const lossOf = (config: object) => {
    const algorithm = createAlgorithm(config);
    const [packed] = packSamples(algorithm.advantages(groups), {
      ...algorithm,
      contextLength: 4,
      microBatchTokens: 8,
      paddingToken: 0,
    });
    // every token is now 1.1 times as likely
    const newLogprobs = packed!.batch.oldLogprobs!.map((old) => old + Math.log(1.1));
    return referenceLoss(algorithm.loss, packed!.batch, newLogprobs).metrics.loss / packed!.divisor;
  };

  test("for grpo is the mean over sequences of the mean over tokens", () => {
    // advantages ±1: −(1.1 · 1 + 1.1 · −1) / 2 = 0
    expect(lossOf({ name: "grpo" })).toBeCloseTo(0, 5);
  });

  test("for dapo is the mean over tokens", () => {
    // −(1.1 − 3 · 1.1) / 4 = 0.55
    expect(lossOf({ name: "dapo" })).toBeCloseTo(0.55, 5);
  });

  test("for rloo is the mean over sequences of their products of ratios, each clipped as a whole", () => {
    // ratio 1.1 for the good one, 1.1³ for the bad one, neither clipped: −(1.1 − 1.331) / 2 = 0.1155
    expect(lossOf({ name: "rloo" })).toBeCloseTo(0.1155, 5);
  });

  test("for rloo whose actions are tokens is the mean over sequences of the sum over tokens", () => {
    // −(1.1 − 3 · 1.1) / 2 = 1.1
    expect(lossOf({ name: "rloo", action: "token" })).toBeCloseTo(1.1, 5);
  });

  test("for dr-grpo divides every sequence's sum by the budget", () => {
    // advantages ±0.5: −(0.5 · 1.1 − 0.5 · 3.3) / 10 / 2 = 0.055
    expect(lossOf({ name: "dr-grpo", maxTokens: 10 })).toBeCloseTo(0.055, 5);
  });

  test("for cispo weighs log-probabilities by clipped ratios", () => {
    // −1.1 · (−1 + ln 1.1) · (1 − 3) / 4, where advantages are 1 and −1
    expect(lossOf({ name: "cispo" })).toBeCloseTo((1.1 * (Math.log(1.1) - 1) * 2) / 4, 5);
  });

  test("for gspo clips the whole sequence", () => {
    // ratio 1.1 for both: clipped to 1.0004 for the good one, unclipped for the bad: −(1.0004 − 1.1) / 2 = 0.0498
    expect(lossOf({ name: "gspo" })).toBeCloseTo(0.0498, 5);
  });
});
