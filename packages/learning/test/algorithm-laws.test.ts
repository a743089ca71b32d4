import type { EpisodeGroup } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  advantageMoments,
  algorithmNames,
  createAlgorithm,
  mergeMoments,
  normaliseAdvantages,
  packSamples,
} from "../src/index.ts";
import { makeEpisode, makeGroup } from "../src/testing/index.ts";

const reward = fc.double({ min: -10, max: 10, noNaN: true });
const group: fc.Arbitrary<EpisodeGroup> = fc
  .record({
    promptId: fc.string({ minLength: 1, maxLength: 4 }),
    episodes: fc.array(fc.tuple(reward, fc.integer({ min: 1, max: 6 })), { minLength: 2, maxLength: 6 }),
  })
  .map(({ promptId, episodes }) => ({
    promptId,
    episodes: episodes.map(([value, policyTokens]) => {
      const episode = makeEpisode({ promptId, reward: value, policyTokens });
      const refLogprobs = episode.logprobs.map((logprob) => logprob * 1.5);
      return { ...episode, refLogprobs, values: Float32Array.from(episode.tokens, (token) => token % 3) };
    }),
  }));

const groupRelative = ["grpo", "dapo", "gspo", "rloo"] as const;
/** The one advantage of a sample whose tokens all have the same. */
const ofSample = (sample: { advantages: Float64Array }) => sample.advantages[1]!;

describe("group-relative advantages", () => {
  test.each(groupRelative)("of %s sum to zero over a group", (name) => {
    fc.assert(
      fc.property(group, (given) => {
        const advantages = createAlgorithm({ name }).advantages([given]).map(ofSample);
        expect(advantages.reduce((sum, value) => sum + value, 0)).toBeCloseTo(0, 4);
      }),
    );
  });

  test.each(["grpo", "dr-grpo", "gspo", "cispo", "rloo"] as const)(
    "of %s are 0 where large rewards are equal",
    (name) => {
      fc.assert(
        fc.property(
          fc.double({ min: -1e15, max: 1e15, noNaN: true }),
          fc.integer({ min: 2, max: 9 }),
          (value, size) => {
            const algorithm = createAlgorithm({ name, dropEqualRewards: false });
            const samples = algorithm.advantages([makeGroup(Array.from({ length: size }, () => value))]);
            expect(samples.map((sample) => Math.abs(ofSample(sample)))).toEqual(samples.map(() => 0));
          },
        ),
        { examples: [[1e10 / 3, 7]] },
      );
    },
  );

  test("of rloo are those of grpo without the deviation, times n / (n − 1)", () => {
    fc.assert(
      fc.property(group, (given) => {
        const n = given.episodes.length;
        const mine = createAlgorithm({ name: "rloo" }).advantages([given]).map(ofSample);
        const others = createAlgorithm({ name: "grpo", divideByStd: false }).advantages([given]).map(ofSample);
        mine.forEach((advantage, index) => {
          expect(advantage).toBeCloseTo((others[index]! * n) / (n - 1), 4);
        });
      }),
    );
  });

  test("of grpo do not change when rewards are shifted or scaled", () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.integer({ min: -50, max: 50 }), { minLength: 2, maxLength: 6 }), (rewards) => {
        const algorithm = createAlgorithm({ name: "grpo" });
        const plain = algorithm.advantages([makeGroup(rewards)]).map(ofSample);
        const moved = algorithm.advantages([makeGroup(rewards.map((value) => 3 * value + 7))]).map(ofSample);
        moved.forEach((advantage, index) => {
          expect(advantage).toBeCloseTo(plain[index]!, 4);
        });
      }),
    );
  });
});

test("advantages scaled over a step have mean zero and deviation one, whatever parts its moments were merged from", () => {
  fc.assert(
    fc.property(fc.array(group, { minLength: 1, maxLength: 4 }), fc.nat(4), (groups, cut) => {
      const raw = createAlgorithm({ name: "reinforce++" }).advantages(groups);
      const moments = [advantageMoments(raw.slice(0, cut)), advantageMoments(raw.slice(cut))];
      const samples = normaliseAdvantages(raw, mergeMoments(moments));
      const tokens = samples.flatMap(({ advantages, episode }) =>
        [...advantages].filter((_, token) => episode.mask[token] === 1),
      );
      const mean = tokens.reduce((sum, value) => sum + value, 0) / tokens.length;
      const square = tokens.reduce((sum, value) => sum + value ** 2, 0) / tokens.length;
      expect(mean).toBeCloseTo(0, 4);
      // The 1e-6 in the divisor shows where rewards hardly differ.
      const rewards = groups.flatMap(({ episodes }) => episodes.map((episode) => episode.reward));
      if (Math.max(...rewards) - Math.min(...rewards) > 0.1) expect(square).toBeCloseTo(1, 3);
      else expect(square).toBeLessThanOrEqual(1.0001);
    }),
  );
});

describe("streaming", () => {
  const chunked = algorithmNames.map((name) => ({ name }));

  test.each(chunked)("$name gives the same samples, weights and divisor in any chunks", (config) => {
    const algorithm = createAlgorithm(config);
    const options = { ...algorithm, contextLength: 8, microBatchTokens: 24, paddingToken: 0 };
    fc.assert(
      fc.property(fc.array(group, { minLength: 1, maxLength: 4 }), fc.nat(4), (groups, cut) => {
        const chunks = [groups.slice(0, cut), groups.slice(cut)].map((part) => algorithm.advantages(part));
        const whole = algorithm.advantages(groups);
        expect(chunks.flat()).toEqual(whole);
        const total = (samples: typeof whole) => {
          const packed = packSamples(samples, options);
          const divisor = packed.reduce((sum, batch) => sum + batch.divisor, 0);
          const weights = packed.flatMap(({ batch }) => [...batch.weights].filter((weight) => weight > 0));
          return { divisor, weights: weights.sort((a, b) => a - b) };
        };
        const parts = chunks.map(total);
        expect(parts[0]!.divisor + parts[1]!.divisor).toBe(total(whole).divisor);
        expect(parts.flatMap(({ weights }) => weights).sort((a, b) => a - b)).toEqual(total(whole).weights);
      }),
      { numRuns: 30 },
    );
  });

  test("algorithms with statistics of the whole step say so", () => {
    const whole = algorithmNames.filter((name) => createAlgorithm({ name }).needsWholeBatch);
    expect(whole).toEqual(["reinforce++", "reinforce++-baseline", "ppo"]);
  });
});

describe("filter", () => {
  test("keeps exactly the groups with different rewards", () => {
    fc.assert(
      fc.property(fc.array(fc.array(fc.integer({ min: 0, max: 1 }), { minLength: 2, maxLength: 4 })), (rewards) => {
        const groups = rewards.map((values) => makeGroup(values));
        const { kept, droppedGroups } = createAlgorithm({ name: "dapo" }).filter(groups);
        expect(kept).toEqual(groups.filter((_, index) => new Set(rewards[index]).size > 1));
        expect(kept.length + droppedGroups["equal-rewards"]).toBe(groups.length);
      }),
    );
  });

  test("takes aborted and empty episodes out, then judges what is left", () => {
    const aborted = makeEpisode({ reward: 1, finishReason: "abort" });
    const empty = makeEpisode({ reward: 1, policyTokens: 0 });
    const [right, wrong] = makeGroup([1, 0]).episodes;
    const groups = [
      { promptId: "a", episodes: [aborted, right!, wrong!, empty] },
      { promptId: "b", episodes: [aborted, right!] },
    ];
    const result = createAlgorithm({ name: "grpo" }).filter(groups);
    expect(result.kept).toEqual([{ promptId: "a", episodes: [right, wrong] }]);
    expect(result.droppedGroups).toEqual({ "equal-rewards": 0, "too-few-episodes": 1, truncated: 0 });
    expect(result.droppedEpisodes).toEqual({ aborted: 2, "no-policy-tokens": 1 });
  });

  test("refuses a reward that is no number in a group too small, too", () => {
    const aborted = makeEpisode({ finishReason: "abort", reward: Number.NaN });
    const bad = { promptId: "bad", episodes: [makeEpisode({ reward: Number.NaN }), aborted] };
    expect(() => createAlgorithm({ name: "grpo" }).filter([bad])).toThrow("reward 'NaN'");
  });

  test("drops groups of cut answers alone where these train nothing", () => {
    const cut = makeGroup([1, 0], { finishReason: "length" });
    const partly = { ...cut, episodes: [...cut.episodes, makeEpisode()] };
    const masking = createAlgorithm({ name: "dapo", maskTruncated: true }).filter([cut, partly]);
    expect(masking.kept).toEqual([partly]);
    expect(masking.droppedGroups.truncated).toBe(1);
    expect(createAlgorithm({ name: "dapo" }).filter([cut, partly]).kept).toEqual([cut, partly]);
  });

  test("leaves equal rewards to algorithms that learn from them", () => {
    const groups = [makeGroup([1, 1])];
    expect(createAlgorithm({ name: "grpo", dropEqualRewards: false }).filter(groups).kept).toEqual(groups);
    expect(createAlgorithm({ name: "reinforce++" }).filter(groups).kept).toEqual(groups);
    const kl = { placement: "reward", coefficient: 0.1 };
    expect(createAlgorithm({ name: "rloo", kl }).filter(groups).kept).toEqual(groups);
  });
});

test("a group too small, a missing reference and a reward that is not a number are named", () => {
  const grpo = createAlgorithm({ name: "grpo" });
  expect(() => grpo.advantages([makeGroup([1])])).toThrow(/group of prompt 'prompt' has '1' episodes/);
  expect(() => grpo.advantages([makeGroup([1, Number.NaN])])).toThrow(/reward 'NaN'/);
  expect(() => createAlgorithm({ name: "reinforce++" }).advantages([makeGroup([1, 0])])).toThrow(/has no refLogprobs/);
});
