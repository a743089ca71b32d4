/** Ranks of an actor are replicas: together they take the step that one would take on all episodes. */
import type { Episode, EpisodeGroup, Weights } from "@treadle/contracts";
import { createRandom, momentsOf, standardiser } from "@treadle/learning";
import { makeEpisode } from "@treadle/learning/testing";
import type { Source } from "@treadle/runtime";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Demonstration } from "../src/actor/imitation.ts";
import { momentsOverRanks } from "../src/actor/rank-moments.ts";
import { ActorConfig, ActorWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { CountedActor } from "./support/counted-actor.ts";
import { Group } from "./support/group.ts";

const contextLength = 6;
const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength, microBatchTokens: 24, valueHead: true };

async function actor(config: object, rank: number, worldSize: number, group = new Group(worldSize)) {
  const parsed = ActorConfig.parse({ model, learningRate: 0.01, ...config });
  const worker = new ActorWorker(contextOf(parsed, "actor", { rank, group }));
  await worker.setup();
  return worker;
}

const sourceOf = (batches: readonly (readonly EpisodeGroup[])[]): Source<EpisodeGroup> =>
  ({
    async *batches() {
      yield* batches;
    },
  }) as unknown as Source<EpisodeGroup>;

const random = createRandom("actor ranks");
const drawn = (length: number, low: number, high: number) =>
  Float32Array.from({ length }, () => low + (high - low) * random.float());
const groups = Array.from({ length: 7 }, (_, prompt): EpisodeGroup => {
  const episodes = Array.from({ length: 3 }, () => {
    const policyTokens = 1 + random.integer(4);
    const length = 1 + policyTokens;
    const scores = { logprobs: drawn(length, -3, -1), refLogprobs: drawn(length, -3, -1), values: drawn(length, 0, 1) };
    return makeEpisode({ promptId: `${prompt}`, policyTokens, reward: random.integer(3), ...scores });
  });
  return { promptId: `${prompt}`, episodes };
});

const flat = (weights: Weights | undefined) => weights?.parameters.flatMap(({ data }) => [...data]) ?? [];

test.each([
  { algorithm: { name: "grpo" } },
  { algorithm: { name: "ppo" } },
  { algorithm: { name: "reinforce++" } },
  { algorithm: { name: "rloo", kl: { placement: "reward", coefficient: 0.1 } } },
])("$algorithm.name: one rank and two, in whatever chunks, take the same step and report the same", async (config) => {
  const alone = await actor(config, 0, 1);
  const before = flat(await alone.weights());
  const expected = await alone.train(sourceOf([groups]));
  const group = new Group(2);
  const ranks = await Promise.all([0, 1].map((rank) => actor(config, rank, 2, group)));
  const shares = [sourceOf([groups.slice(0, 2), groups.slice(2, 5)]), sourceOf([groups.slice(5), []])];
  const reported = await Promise.all(ranks.map((rank, index) => rank.train(shares[index] as Source<EpisodeGroup>)));
  const [first, second] = await Promise.all(ranks.map(async (rank) => flat(await rank.weights())));
  expect(first).toEqual(second);
  const after = flat(await alone.weights());
  const moved = Math.max(...after.map((value, at) => Math.abs(value - (before[at] as number))));
  expect(moved).toBeGreaterThan(0.005);
  const apart = Math.max(...after.map((value, at) => Math.abs(value - ((first as number[])[at] as number))));
  // Adam's first step is nearly the sign of the gradient, so rounding shows where a gradient is almost zero.
  expect(apart).toBeLessThan(0.05 * moved);
  for (const own of reported) {
    for (const [name, value] of Object.entries(expected)) expect(own[name], name).toBeCloseTo(value, 3);
  }
});

test("ranks ask their engines equally often, whatever comes to each, so that these may meet in every call", async () => {
  const drawn = fc.record({
    numRanks: fc.integer({ min: 1, max: 4 }),
    numRounds: fc.integer({ min: 0, max: 3 }),
    dealt: fc.array(fc.nat(20), { minLength: 7, maxLength: 7 }),
    others: fc.constantFrom({}, { epochs: 2, minibatches: 2 }, { algorithm: { name: "reinforce++" } }),
    isOld: fc.boolean(),
    microBatchTokens: fc.constantFrom(6, 24),
  });
  await fc.assert(
    fc.asyncProperty(drawn, async ({ numRanks, numRounds, dealt, others, isOld, microBatchTokens }) => {
      const group = new Group(numRanks);
      const config = { algorithm: { name: "grpo" }, learningRate: 0.01, ...others };
      const workers = await Promise.all(
        Array.from({ length: numRanks }, async (_, rank) => {
          const parsed = ActorConfig.parse({ model: { ...model, microBatchTokens }, ...config });
          const worker = new CountedActor(contextOf(parsed, "actor", { rank, group }));
          await worker.setup();
          return worker;
        }),
      );
      const rounds = workers.map(() => Array.from({ length: numRounds }, (): EpisodeGroup[] => []));
      const engine = isOld ? "sglang" : "embedded"; // another one's samples are scored again
      for (const [index, { promptId, episodes }] of groups.entries()) {
        const place = dealt[index] as number;
        const batch = rounds[place % numRanks]?.[place % Math.max(1, numRounds)];
        batch?.push({ promptId, episodes: episodes.map((episode) => ({ ...episode, engine })) });
      }
      await Promise.all(workers.map((worker, rank) => worker.train(sourceOf(rounds[rank] as EpisodeGroup[][]))));
      const [first, ...fellows] = workers as [CountedActor, ...CountedActor[]];
      for (const { asked } of fellows) expect(asked).toEqual(first.asked);
      const weights = await Promise.all(workers.map(async (worker) => flat(await worker.weights())));
      for (const own of weights) expect(own).toEqual(weights[0]);
    }),
    { numRuns: 40 },
  );
});

test("epochs and minibatches take so many optimiser steps on every rank, though one of them got nothing", async () => {
  const group = new Group(2);
  const config = { algorithm: { name: "ppo" }, epochs: 2, minibatches: 3 };
  const ranks = await Promise.all([0, 1].map((rank) => actor(config, rank, 2, group)));
  const shares = [sourceOf([groups]), sourceOf([[]])];
  const reported = await Promise.all(ranks.map((rank, index) => rank.train(shares[index] as Source<EpisodeGroup>)));
  for (const { policyVersion } of reported) expect(policyVersion).toBe(6);
  const [first, second] = await Promise.all(ranks.map(async (rank) => flat(await rank.weights())));
  expect(first).toEqual(second);
});

test("W2: with several optimiser steps a call, staleness is still counted in calls", async () => {
  const config = { algorithm: { name: "ppo" }, epochs: 2, minibatches: 1, maxStaleness: 1 };
  const alone = await actor(config, 0, 1);
  await alone.train(sourceOf([groups]));
  await alone.train(sourceOf([groups])); // two versions old, one call
  await expect(alone.train(sourceOf([groups]))).rejects.toMatchObject({
    code: "learning.invalid-batch",
    message:
      "episodes of prompt '0' are '4' policy versions old, at most 2 are allowed (flow.maxStaleness); call 'rollout.pullWeights(actor)' at the beginning of each step",
  });
});

test("any number of ranks scales advantages as one does, small beside their mean as they may be", async () => {
  const draw = fc.record({
    mean: fc.constantFrom(0, 1, 100, 1e3, 1e6),
    deviation: fc.constantFrom(1e-3, 0.1, 1),
    parts: fc.array(fc.array(fc.double({ min: -1, max: 1, noNaN: true }), { maxLength: 8 }), {
      minLength: 1,
      maxLength: 6,
    }),
  });
  await fc.assert(
    fc.asyncProperty(draw, async ({ mean, deviation, parts }) => {
      const values = parts.map((part) => part.map((value) => mean + deviation * value));
      const group = new Group(parts.length);
      const merged = await Promise.all(
        values.map((own, rank) => momentsOverRanks(group.messagesOf(rank), parts.length, momentsOf(own))),
      );
      const all = values.flat();
      const alone = standardiser(momentsOf(all));
      const center = all.reduce((sum, value) => sum + value, 0) / Math.max(1, all.length);
      const squares = all.reduce((sum, value) => sum + (value - center) ** 2, 0) / Math.max(1, all.length);
      // Of a value that far from 0 float64 keeps this much, in deviations.
      const kept = (mean * 1e-15) / (Math.sqrt(squares) + 1e-6);
      for (const moments of merged) {
        expect(moments).toEqual(merged[0]);
        const standardise = standardiser(moments);
        for (const value of all) {
          const expected = (value - center) / (Math.sqrt(squares) + 1e-6);
          expect(Math.abs(standardise(value) - alone(value))).toBeLessThan(1e-6 + kept);
          expect(Math.abs(standardise(value) - expected)).toBeLessThan(1e-6 + kept);
        }
      }
    }),
  );
});

test("equal values are scaled to exactly 0, whatever their size and on any number of ranks, empty ones among them", async () => {
  const draw = fc.record({
    value: fc.oneof(fc.constantFrom(0.1, 1000.1, 1e9 + 0.1), fc.double({ min: -1e15, max: 1e15, noNaN: true })),
    counts: fc.array(fc.nat(8), { minLength: 1, maxLength: 6 }),
  });
  await fc.assert(
    fc.asyncProperty(draw, async ({ value, counts }) => {
      const group = new Group(counts.length);
      const merged = await Promise.all(
        counts.map((count, rank) =>
          momentsOverRanks(group.messagesOf(rank), counts.length, momentsOf(Array(count).fill(value))),
        ),
      );
      if (counts.every((count) => count === 0)) return;
      for (const moments of merged) {
        expect(Math.abs(standardiser(moments)(value))).toBe(0);
        expect(moments.squares).toBe(0);
      }
    }),
    { examples: [[{ value: 1000.1, counts: [3, 0, 4] }], [{ value: 1e9 + 0.1, counts: [0, 7, 3] }]] },
  );
});

test("rewards of 1000 ± 0.1 on two ranks have the advantages that they have on one", async () => {
  const config = { algorithm: { name: "reinforce++", kl: { placement: "none" } } };
  const far = groups.map(({ promptId, episodes }, index) => ({
    promptId,
    episodes: episodes.map((episode, at) => ({ ...episode, reward: 1000 + ((index + at) % 3 === 0 ? 0.1 : -0.1) })),
  }));
  const alone = await actor(config, 0, 1);
  const { gradNorm } = await alone.train(sourceOf([far]));
  const group = new Group(2);
  const ranks = await Promise.all([0, 1].map((rank) => actor(config, rank, 2, group)));
  const shares = [sourceOf([far.slice(0, 3)]), sourceOf([far.slice(3)])];
  const reported = await Promise.all(ranks.map((rank, index) => rank.train(shares[index] as Source<EpisodeGroup>)));
  for (const own of reported) expect(own.gradNorm).toBeCloseTo(gradNorm as number, 4);
  expect(gradNorm).toBeGreaterThan(0.01);
});

test("metrics count by one beyond 2^24, whatever part of them is on which rank", async () => {
  const rewarded = (reward: number) => sourceOf([[{ promptId: "one", episodes: [makeEpisode({ reward })] }]]);
  const group = new Group(2);
  const ranks = await Promise.all([0, 1].map((rank) => actor({ algorithm: { name: "grpo" } }, rank, 2, group)));
  const reported = await Promise.all(ranks.map((each, rank) => each.train(rewarded(rank === 0 ? 2 ** 24 : 1))));
  for (const { reward } of reported) expect(reward).toBe((2 ** 24 + 1) / 2);
});

test("what inference has rescored is weighted, cut at the cap, and the share of that is reported", async () => {
  // Ratios 4 and 1/2: the first is cut to 2.
  const rescored = groups.map(({ promptId, episodes }) => ({
    promptId,
    episodes: episodes.map((episode) => ({
      ...episode,
      oldLogprobs: episode.logprobs.map((logprob, token) => logprob + Math.log(token === 1 ? 4 : 0.5)),
    })),
  }));
  const tokens = rescored.flatMap(({ episodes }) => episodes.map(({ mask }) => mask.length - 1));
  const all = tokens.reduce((sum, count) => sum + count, 0);
  const config = { algorithm: { name: "grpo", dropEqualRewards: false } };
  const capped = await (await actor(config, 0, 1)).train(sourceOf([rescored]));
  expect(capped.cut).toBeCloseTo(tokens.length / all, 6);
  const others = all - tokens.length;
  expect(capped.importance).toBeCloseTo((4 * tokens.length + 0.5 * others) / all, 4);
  const effective = (4 * tokens.length + 0.5 * others) ** 2 / (all * (16 * tokens.length + 0.25 * others));
  expect(capped.effectiveSamples).toBeCloseTo(effective, 4);
  const k3 = (ratio: number) => ratio - 1 - Math.log(ratio);
  expect(capped.mismatchKl).toBeCloseTo((k3(4) * tokens.length + k3(0.5) * others) / all, 4);
  expect(capped.mismatchKlMax).toBeCloseTo(k3(4), 4);
  // The largest of all ranks, not their sum.
  const group = new Group(2);
  const ranks = await Promise.all([0, 1].map((rank) => actor(config, rank, 2, group)));
  const shares = [sourceOf([rescored.slice(0, 3)]), sourceOf([rescored.slice(3)])];
  for (const reported of await Promise.all(ranks.map((rank, index) => rank.train(shares[index]!))))
    for (const name of ["mismatchKlMax", "mismatchKl", "effectiveSamples", "cut"])
      expect(reported[name]).toBeCloseTo(capped[name] as number, 5);
  const uncapped = await (await actor({ ...config, rolloutCorrection: { cap: 10 } }, 0, 1)).train(sourceOf([rescored]));
  expect(uncapped.cut).toBe(0);
  expect(uncapped.gradNorm).not.toBeCloseTo(capped.gradNorm as number, 3);
  const fresh = await (await actor(config, 0, 1)).train(sourceOf([groups]));
  expect(fresh).not.toHaveProperty("importance");
});

test("what older weights have sampled is rescored with those that the step begins with, whatever inference said", async () => {
  const trainedOnce = async () => {
    const worker = await actor({ algorithm: { name: "grpo", dropEqualRewards: false }, maxStaleness: 1 }, 0, 1);
    await worker.train(sourceOf([groups]));
    return worker;
  };
  const ofVersion = (version: number, others: Partial<Episode> = {}) =>
    groups.map(({ promptId, episodes }) => ({
      promptId,
      episodes: episodes.map((episode) => ({
        ...episode,
        policyVersions: episode.policyVersions.map((own) => (own < 0 ? own : version)),
        ...others,
      })),
    }));
  const stale = await (await trainedOnce()).train(sourceOf([ofVersion(0)]));
  // Drawn at random, what was "sampled" has nothing to do with the policy.
  expect(Math.abs((stale.importance as number) - 1)).toBeGreaterThan(0.05);
  expect(stale.cut).toBeGreaterThan(0);
  const bySampler = ofVersion(0).map(({ promptId, episodes }) => ({
    promptId,
    episodes: episodes.map((episode) => ({ ...episode, oldLogprobs: episode.logprobs })),
  }));
  expect(await (await trainedOnce()).train(sourceOf([bySampler]))).toEqual(stale);
  expect(await (await trainedOnce()).train(sourceOf([ofVersion(1)]))).not.toHaveProperty("importance");
});

test("what another engine has sampled is rescored and weighted, unless inference has; what one like the trainer's has is not", async () => {
  const config = { algorithm: { name: "grpo", dropEqualRewards: false } };
  const sampledBy = (engine: string, others: (episode: Episode) => Partial<Episode> = () => ({})) =>
    groups.map(({ promptId, episodes }) => ({
      promptId,
      episodes: episodes.map((episode) => ({ ...episode, engine, ...others(episode) })),
    }));
  const trainOn = async (given: readonly EpisodeGroup[]) => (await actor(config, 0, 1)).train(sourceOf([given]));
  const own = await trainOn(sampledBy("embedded"));
  expect(own).toEqual(await trainOn(groups));
  expect(own).not.toHaveProperty("importance");
  const other = await trainOn(sampledBy("sglang"));
  // Drawn at random, what was "sampled" has nothing to do with the policy.
  expect(Math.abs((other.importance as number) - 1)).toBeGreaterThan(0.05);
  expect(other.cut).toBeGreaterThan(0);
  expect(other.gradNorm).not.toBeCloseTo(own.gradNorm as number, 3);
  const scored = await trainOn(sampledBy("sglang", ({ logprobs }) => ({ oldLogprobs: logprobs })));
  expect(scored).toMatchObject({ importance: 1, cut: 0, gradNorm: own.gradNorm });
});

test.each([
  ["a reward that is no number", { reward: Number.NaN }, "reward 'NaN'"],
  ["an infinite reward", { reward: Number.POSITIVE_INFINITY }, "reward 'Infinity'"],
  ["a log-probability that is no number", { logprobs: Float32Array.of(0, Number.NaN, -1) }, "logprobs 'NaN'"],
  ["a reward that float32 cannot square", { reward: 1e200 }, "reward '1e+200'"],
  ["the reward of an empty completion", { ...makeEpisode({ policyTokens: 0 }), reward: Number.NaN }, "reward 'NaN'"],
  ["a version from the future", { policyVersions: Int32Array.of(-1, 0, 9) }, "policy version '9' at token '2'"],
  ["a temperature next to 0", { temperature: 1e-30 }, "temperature '1e-30'"],
  ["a temperature of 0", { temperature: 0 }, "temperature '0'"],
  ["a temperature beyond float32", { temperature: 1e39 }, "temperature '1e+39'"],
  ["a negative temperature", { temperature: -1 }, "temperature '-1'"],
])("%s is refused before it reaches a weight", async (_, spoiled, message) => {
  const worker = await actor({ algorithm: { name: "grpo" } }, 0, 1);
  const before = flat(await worker.weights());
  const bad = { promptId: "bad", episodes: [makeEpisode({ reward: 1 }), makeEpisode({ reward: 0, ...spoiled })] };
  await expect(worker.train(sourceOf([groups, [bad]]))).rejects.toMatchObject({
    code: "learning.invalid-batch",
    message: expect.stringContaining(message),
  });
  expect(flat(await worker.weights())).toEqual(before);
  // Nor does what came before it count in the next call.
  const { gradNorm } = await worker.train(sourceOf([groups]));
  const fresh = await (await actor({ algorithm: { name: "grpo" } }, 0, 1)).train(sourceOf([groups]));
  expect(gradNorm).toBe(fresh.gradNorm);
});

const scored = { refLogprobs: new Float32Array(3).fill(-1) };
test.each<[string, Partial<Episode>, string]>([
  [
    "a sequence that is too long",
    makeEpisode({ policyTokens: 7, refLogprobs: new Float32Array(8).fill(-1) }),
    "'8' tokens",
  ],
  ["a token outside the vocabulary", { ...scored, tokens: Int32Array.of(2, 30, 3) }, "token '30' at '1'"],
  ["a missing reference", { refLogprobs: undefined }, "no refLogprobs"],
])("%s in a later minibatch is refused before an earlier one moves weights", async (_, spoiled, message) => {
  const config = { algorithm: { name: "grpo", kl: { placement: "loss", coefficient: 0.1 } }, minibatches: 6 };
  const worker = await actor(config, 0, 1);
  const before = await worker.weights();
  const bad = {
    promptId: "bad",
    episodes: [makeEpisode({ reward: 1, ...scored }), { ...makeEpisode(), ...spoiled, reward: 0 }],
  };
  await expect(worker.train(sourceOf([[...groups, bad]]))).rejects.toMatchObject({
    code: "learning.invalid-batch",
    message: expect.stringContaining(message),
  });
  expect(await worker.weights()).toEqual(before);
  expect(await worker.train(sourceOf([groups]))).toEqual(await (await actor(config, 0, 1)).train(sourceOf([groups])));
});

test("an episode is packed once an epoch, in however many minibatches", async () => {
  const readsIn = async (config: object): Promise<number> => {
    let reads = 0;
    const watched = groups.map((group) => ({
      ...group,
      episodes: group.episodes.map((episode) => {
        const get = () => {
          reads++;
          return episode.temperature;
        };
        return Object.defineProperty({ ...episode }, "temperature", { get, enumerable: true });
      }),
    }));
    const worker = await actor({ algorithm: { name: "grpo" }, ...config }, 0, 1);
    await worker.train(sourceOf([watched]));
    return reads;
  };
  const [whole, inParts, twice] = [await readsIn({}), await readsIn({ minibatches: 3 }), await readsIn({ epochs: 2 })];
  expect(inParts).toBe(whole);
  expect(twice).toBeGreaterThan(whole);
});

test.each([
  { rows: 2, numRanks: 3 },
  { rows: 4, numRanks: 3 },
  { rows: 7, numRanks: 2 },
])("$numRanks ranks imitate $rows rows an update together, and take each step together", async ({ rows, numRanks }) => {
  const updates = 3;
  const group = new Group(numRanks);
  const workers = await Promise.all(
    Array.from({ length: numRanks }, (_, rank) => actor({ algorithm: { name: "grpo" } }, rank, numRanks, group)),
  );
  const left = Array.from(
    { length: rows * updates },
    (_, at): Demonstration => ({ tokens: Int32Array.of(2, 3 + (at % 4), 4), mask: Float32Array.of(0, 1, 1) }),
  );
  const taken: number[] = [];
  const source = {
    take: async ({ items }: { items: number }) => {
      taken.push(items);
      return left.splice(0, items);
    },
  } as unknown as Source<Demonstration>;
  await Promise.all(workers.map((worker) => worker.imitate(source, { rows, updates, learningRate: 0.01 })));
  expect(taken).toHaveLength(numRanks * updates); // those that add nothing to a round included
  expect(taken.reduce((sum, items) => sum + items, 0)).toBe(rows * updates);
  expect(left).toEqual([]);
  const [first, ...others] = await Promise.all(workers.map((worker) => worker.weights()));
  expect(first?.policyVersion).toBe(updates);
  for (const own of others) expect(own).toEqual(first);
});

test("a bad demonstration of the last update is refused before the first has moved the weights", async () => {
  const worker = await actor({ algorithm: { name: "grpo" } }, 0, 1);
  const before = flat(await worker.weights());
  const good: Demonstration = { tokens: Int32Array.of(2, 3, 4), mask: Float32Array.of(0, 1, 1) };
  const left: Demonstration[] = [good, good, { ...good, tokens: Int32Array.of(2, 9999, 4) }];
  const source = {
    take: async ({ items }: { items: number }) => left.splice(0, items),
  } as unknown as Source<Demonstration>;
  const imitated = worker.imitate(source, { rows: 1, updates: 3, learningRate: 0.01 });
  await expect(imitated).rejects.toThrow("9999");
  expect(flat(await worker.weights())).toEqual(before);
});

test.each([
  ["beta2", { beta2: 0.99 }, { beta2: 0.999 }],
  ["weightDecay", { weightDecay: 0 }, { weightDecay: 0.1 }],
])("%s reaches the optimiser: two steps with another one end elsewhere", async (_, usual, other) => {
  const after = async (settings: object) => {
    const worker = await actor({ algorithm: { name: "grpo" }, minibatches: 2, ...settings }, 0, 1);
    await worker.train(sourceOf([groups]));
    return flat(await worker.weights());
  };
  const byDefault = await after({});
  expect(await after(usual)).toEqual(byDefault);
  expect(await after(other)).not.toEqual(byDefault);
});

test.each([Number.NaN, -1, Number.POSITIVE_INFINITY])("a learning rate of %s is refused", async (learningRate) => {
  const worker = await actor({ algorithm: { name: "grpo" } }, 0, 1);
  const before = flat(await worker.weights());
  await expect(worker.train(sourceOf([groups]), { learningRate })).rejects.toMatchObject({
    code: "engine.invalid-request",
    message: expect.stringContaining(`learningRate '${learningRate}'`),
  });
  expect(flat(await worker.weights())).toEqual(before);
});

test("groups of unequal size, of one, and empty completions train what can be trained", async () => {
  const odd = [
    { promptId: "one", episodes: [makeEpisode({ reward: 1 })] },
    { promptId: "empty", episodes: [makeEpisode({ policyTokens: 0, reward: 1 }), makeEpisode({ reward: 0 })] },
    { promptId: "five", episodes: [1, 0, 0, 1, 0].map((reward) => makeEpisode({ reward })) },
  ];
  const worker = await actor({ algorithm: { name: "grpo" } }, 0, 1);
  const { trainedGroups } = await worker.train(sourceOf([odd]));
  expect(trainedGroups).toBeCloseTo(1 / 3, 6);
  expect(flat(await worker.weights()).every(Number.isFinite)).toBe(true);
});

test("a group of cut answers alone is none that was trained where these are masked", async () => {
  const some = [
    { promptId: "cut", episodes: [1, 0].map((reward) => makeEpisode({ reward, finishReason: "length" })) },
    { promptId: "whole", episodes: [1, 0].map((reward) => makeEpisode({ reward })) },
  ];
  const worker = await actor({ algorithm: { name: "dapo", maskTruncated: true } }, 0, 1);
  expect(await worker.train(sourceOf([some]))).toMatchObject({ trainedGroups: 0.5, reward: 0.5 });
});

test("an aborted episode, whatever its reward, is in no metric and in no step", async () => {
  const aborted = makeEpisode({
    finishReason: "abort",
    reward: Number.NaN,
    logprobs: new Float32Array(3).fill(Number.NaN),
    policyVersions: Int32Array.of(-1, 7, 7), // nor does it matter which weights it is of
  });
  const withAborted = groups.map((group, at) =>
    at === 0 ? { ...group, episodes: [...group.episodes, aborted] } : group,
  );
  const config = { algorithm: { name: "grpo" } };
  const { tokens: fewer, ...expected } = await (await actor(config, 0, 1)).train(sourceOf([groups]));
  const { tokens: more, ...reported } = await (await actor(config, 0, 1)).train(sourceOf([withAborted]));
  expect(reported).toEqual(expected);
  expect(more).toBe((fewer as number) + 2); // they were generated
});
