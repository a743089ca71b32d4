import { describe, expect, test } from "vitest";
import {
  advantageMoments,
  createAlgorithm,
  normaliseAdvantages,
  overlongReward,
  type TrainSample,
} from "../src/index.ts";
import { makeEpisode, makeGroup } from "../src/testing/index.ts";

const round = (values: ArrayLike<number>) => Array.from(values, (value) => Math.round(value * 1e4) / 1e4 + 0);

/** Scaled over these samples alone, as where they are the whole step. */
const normalised = (samples: TrainSample[]) => normaliseAdvantages(samples, advantageMoments(samples));

describe("grpo", () => {
  test("divides the distance from the group's mean by the group's deviation", () => {
    // rewards 1 0 0 1: mean 0.5, deviation 0.5, so ±0.5 / 0.500001 = ±1; token 0 is the prompt
    const samples = createAlgorithm({ name: "grpo" }).advantages([makeGroup([1, 0, 0, 1])]);
    expect(samples.map(({ advantages }) => round(advantages))).toEqual([
      [0, 1, 1],
      [0, -1, -1],
      [0, -1, -1],
      [0, 1, 1],
    ]);
  });

  test("uses the population's deviation", () => {
    // rewards 4 0 0 0: mean 1, variance (9 + 1 + 1 + 1) / 4 = 3, deviation 1.7320508 + 1e-6: 1.73205, −0.57734994
    const samples = createAlgorithm({ name: "grpo" }).advantages([makeGroup([4, 0, 0, 0])]);
    expect(samples.map(({ advantages }) => round(advantages)[1])).toEqual([1.732, -0.5773, -0.5773, -0.5773]);
  });

  test("without the deviation leaves units of reward", () => {
    const samples = createAlgorithm({ name: "grpo", divideByStd: false }).advantages([makeGroup([3, 0, 0])]);
    expect(samples.map(({ advantages }) => advantages[2])).toEqual([2, -1, -1]);
  });

  test("gives tool tokens no advantage", () => {
    const multiTurn = { tokens: Int32Array.of(2, 3, 4, 5, 6), mask: Float32Array.of(0, 1, 0, 0, 1) };
    const samples = createAlgorithm({ name: "grpo" }).advantages([makeGroup([1, 0], multiTurn)]);
    expect(round(samples[0]!.advantages)).toEqual([0, 1, 0, 0, 1]);
  });

  test("describes a token ratio, both clips, and the KL of its configuration", () => {
    const algorithm = createAlgorithm({ name: "grpo", kl: { placement: "loss", coefficient: 0.04 }, dualClip: 3 });
    expect(algorithm.loss).toEqual({
      type: "policy-gradient",
      ratio: "token",
      surrogate: "clipped",
      clipLow: 0.2,
      clipHigh: 0.2,
      dualClip: 3,
      klCoefficient: 0.04,
      klEstimator: "k3",
      entropyCoefficient: 0,
    });
    expect(algorithm).toMatchObject({ needsReference: true, needsWholeBatch: false, needsValues: false });
  });
});

describe("gspo", () => {
  test("has grpo's advantages, a sequence ratio and the sequence mean", () => {
    const algorithm = createAlgorithm({ name: "gspo" });
    expect(round(algorithm.advantages([makeGroup([1, 0, 0, 1])])[0]!.advantages)).toEqual([0, 1, 1]);
    expect(algorithm.loss).toMatchObject({ ratio: "sequence", clipLow: 3e-4, clipHigh: 4e-4 });
    expect(algorithm.normalisation).toEqual({ type: "sequence-mean" });
  });
});

describe("dapo", () => {
  test("clips higher above than below and takes the mean over tokens", () => {
    const algorithm = createAlgorithm({ name: "dapo" });
    expect(algorithm.loss).toMatchObject({ clipLow: 0.2, clipHigh: 0.28, ratio: "token" });
    expect(algorithm.normalisation).toEqual({ type: "token-mean" });
  });

  test("punishes length linearly inside the buffer and fully beyond the maximum", () => {
    // maximum 10, buffer 4: free up to 6; at 8 (6 − 8) / 4 = −0.5; at 10 −1; beyond −1; all times the penalty 2
    const overlong = { maxTokens: 10, bufferTokens: 4, penalty: 2 };
    expect([5, 6, 7, 8, 10, 11].map((tokens) => overlongReward(tokens, overlong))).toEqual([0, 0, -0.5, -1, -2, -2]);
  });

  test.each(["dapo", "cispo"])("adds the punishment before advantages and after the filter, in %s", (name) => {
    const algorithm = createAlgorithm({ name, overlong: { maxTokens: 4, bufferTokens: 2 } });
    // both right, one of 4 tokens: shaped rewards 1 and 0, mean 0.5, deviation 0.5
    const short = makeEpisode({ reward: 1, policyTokens: 2 });
    const long = makeEpisode({ reward: 1, policyTokens: 4 });
    const group = { promptId: "prompt", episodes: [short, long] };
    expect(algorithm.advantages([group]).map(({ advantages }) => round(advantages)[1])).toEqual([1, -1]);
    expect(algorithm.filter([group]).droppedGroups["equal-rewards"]).toBe(1);
  });

  test("masks truncated episodes and still counts them in the mean", () => {
    const algorithm = createAlgorithm({ name: "dapo", maskTruncated: true });
    const done = makeEpisode({ reward: 1 });
    const cut = makeEpisode({ reward: 0, finishReason: "length" });
    const samples = algorithm.advantages([{ promptId: "prompt", episodes: [done, cut] }]);
    expect(samples).toHaveLength(1);
    expect(samples[0]!.episode).toBe(done);
    expect(round(samples[0]!.advantages)).toEqual([0, 1, 1]);
  });
});

describe("rloo", () => {
  test("subtracts the mean of the others", () => {
    // rewards 3 0 0: 3 − 0 = 3; 0 − 3 / 2 = −1.5
    const samples = createAlgorithm({ name: "rloo" }).advantages([makeGroup([3, 0, 0])]);
    expect(samples.map(({ advantages }) => advantages[1])).toEqual([3, -1.5, -1.5]);
  });

  test("takes the KL of the whole sequence off the reward", () => {
    const kl = { placement: "reward", coefficient: 0.5 };
    const refLogprobs = Float32Array.of(0, -2, -3);
    // logprobs −1 −1 against −2 −3: k1 sums to 1 + 2 = 3, half of it is 1.5: rewards 2 − 1.5 = 0.5 against 0 (no KL)
    const drifted = makeEpisode({ reward: 2, refLogprobs });
    const same = makeEpisode({ reward: 0, refLogprobs: Float32Array.of(0, -1, -1) });
    const algorithm = createAlgorithm({ name: "rloo", kl });
    const samples = algorithm.advantages([{ promptId: "prompt", episodes: [drifted, same] }]);
    expect(samples.map(({ advantages }) => advantages[1])).toEqual([0.5, -0.5]);
    expect(algorithm.loss.klCoefficient).toBe(0);
  });
});

describe("reinforce++", () => {
  test("scales rewards over all tokens of all groups", () => {
    const algorithm = createAlgorithm({ name: "reinforce++", kl: { placement: "none" } });
    // tokens: one with reward 1, three with reward 0: mean 0.25, variance 0.25 · 0.75 = 0.1875, deviation 0.43301
    const groups = [makeGroup([1], { policyTokens: 1 }), makeGroup([0], { policyTokens: 3 })];
    const [one, other] = normalised(algorithm.advantages(groups));
    expect(round(one!.advantages)).toEqual([0, 1.732]); // 0.75 / 0.43301
    expect(round(other!.advantages)).toEqual([0, -0.5773, -0.5773, -0.5773]); // −0.25 / (0.43301 + 1e-6)
    expect(algorithm.needsWholeBatch).toBe(true);
  });

  test("takes the KL still to come off each token's reward", () => {
    const kl = { placement: "reward", coefficient: 1, estimator: "k1" };
    // k1 of the tokens: −1 − (−2) = 1 and −1 − (−4) = 3; reward 5: G = 5 − 4 = 1 and 5 − 3 = 2; mean 1.5, deviation 0.5
    const episode = makeEpisode({ reward: 5, refLogprobs: Float32Array.of(0, -2, -4) });
    const samples = createAlgorithm({ name: "reinforce++", kl }).advantages([{ promptId: "p", episodes: [episode] }]);
    expect(round(samples[0]!.advantages)).toEqual([0, 1, 2]);
    expect(round(normalised(samples)[0]!.advantages)).toEqual([0, -1, 1]);
  });

  test("may subtract the group's mean first", () => {
    const algorithm = createAlgorithm({ name: "reinforce++-baseline", kl: { placement: "none" } });
    // an easy and a hard prompt: 11 10 and 1 0 both become 0.5 −0.5, deviation 0.5
    const samples = normalised(algorithm.advantages([makeGroup([11, 10]), makeGroup([1, 0])]));
    expect(samples.map(({ advantages }) => round(advantages)[1])).toEqual([1, -1, 1, -1]);
    expect(() => algorithm.advantages([makeGroup([1])])).toThrow(
      "group of prompt 'prompt' has '1' episodes: allowed is at least 2 for reinforce++-baseline",
    );
  });
});

describe("ppo", () => {
  const values = Float32Array.of(0, 0.25, 0.5);
  const episode = makeEpisode({ reward: 1, refLogprobs: Float32Array.of(0, -2, -1), values });
  const groups = [{ promptId: "prompt", episodes: [episode] }];

  test("estimates advantages over the policy's tokens with the reward at the last", () => {
    const algorithm = createAlgorithm({ name: "ppo", discount: 1, lambda: 0.5, normaliseAdvantages: false });
    // token 2: 1 − 0.5 = 0.5; token 1: (0 + 0.5 − 0.25) + 0.5 · 0.5 = 0.5; returns 0.5 + 0.5 = 1 and 0.5 + 0.25 = 0.75
    const [sample] = algorithm.advantages(groups);
    expect(round(sample!.advantages)).toEqual([0, 0.5, 0.5]);
    expect(round(sample!.returns!)).toEqual([0, 0.75, 1]);
    expect(round(sample!.oldValues!)).toEqual([0, 0.25, 0.5]);
    expect(algorithm.needsWholeBatch).toBe(false);
  });

  test("takes the KL off each token's reward", () => {
    const kl = { placement: "reward", coefficient: 0.1, estimator: "k1" };
    const algorithm = createAlgorithm({ name: "ppo", lambda: 1, normaliseAdvantages: false, kl });
    // k1 is 1 at token 1 and 0 at token 2: rewards −0.1 and 1; returns 0.9 and 1; advantages 0.65 and 0.5
    const [sample] = algorithm.advantages(groups);
    expect(round(sample!.advantages)).toEqual([0, 0.65, 0.5]);
    expect(round(sample!.returns!)).toEqual([0, 0.9, 1]);
  });

  test("goes on from the value before the last token of a cut answer when asked", () => {
    const options = { name: "ppo", lambda: 1, normaliseAdvantages: false, truncation: "bootstrap" };
    const cut = [{ promptId: "prompt", episodes: [{ ...episode, finishReason: "length" as const }] }];
    // 1 + 0.5 for both tokens; an answer that stopped is worth its reward
    expect(round(createAlgorithm(options).advantages(cut)[0]!.returns!)).toEqual([0, 1.5, 1.5]);
    expect(round(createAlgorithm(options).advantages(groups)[0]!.returns!)).toEqual([0, 1, 1]);
  });

  test("estimates the penalty with k3 when asked", () => {
    const kl = { placement: "reward", coefficient: 1, estimator: "k3" };
    const algorithm = createAlgorithm({ name: "ppo", lambda: 1, normaliseAdvantages: false, kl });
    // k3 of a difference of 1: e^−1 − 1 + 1 = 0.36788; return 1 − 0.36788 = 0.63212
    const [sample] = algorithm.advantages(groups);
    expect(round(sample!.returns!)).toEqual([0, 0.6321, 1]);
  });

  test("scales advantages and not returns", () => {
    // lambda 1: advantages 1 − 0.25 = 0.75 and 1 − 0.5 = 0.5: mean 0.625, deviation 0.125
    const algorithm = createAlgorithm({ name: "ppo", lambda: 1 });
    const [sample] = normalised(algorithm.advantages(groups));
    expect(round(sample!.advantages)).toEqual([0, 1, -1]);
    expect(round(sample!.returns!)).toEqual([0, 1, 1]);
    expect(algorithm.needsWholeBatch).toBe(true);
  });

  test("says that it needs values", () => {
    const ppo = createAlgorithm({ name: "ppo", valueCoefficient: 0.1, valueClip: 0.3 });
    expect(ppo.needsValues).toBe(true);
    expect(ppo.loss.value).toEqual({ coefficient: 0.1, clip: 0.3 });
    expect(() => ppo.advantages([makeGroup([1])])).toThrow(/has no values.*score episodes with a critic first/);
    expect(() => ppo.advantages([makeGroup([1], { values: Float32Array.of(1) })])).toThrow(/has '1' values/);
  });
});
