/** Ranks of an actor are replicas: together they take the step that one would take on all episodes. */
import type { EpisodeGroup, Weights } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { makeEpisode } from "@treadle/learning/testing";
import type { Source, WorkerContext } from "@treadle/runtime";
import { expect, test } from "vitest";
import { ActorConfig, ActorWorker } from "../src/index.ts";

const contextLength = 6;
const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength, microBatchRows: 8, valueHead: true };

/** Adds up what as many callers as there are ranks bring. */
function allReduce(worldSize: number): (values: Float32Array) => Promise<Float32Array> {
  let round: { readonly brought: Float32Array[]; readonly done: ((sum: Float32Array) => void)[] } = {
    brought: [],
    done: [],
  };
  return (values) =>
    new Promise((resolve) => {
      round.brought.push(values);
      round.done.push(resolve);
      if (round.brought.length < worldSize) return;
      const { brought, done } = round;
      round = { brought: [], done: [] };
      const sum = values.map((_, at) => brought.reduce((total, own) => total + (own[at] as number), 0));
      for (const each of done) each(sum);
    });
}

async function actor(config: object, rank: number, worldSize: number, sum: ReturnType<typeof allReduce>) {
  const context = {
    config: ActorConfig.parse({ model, learningRate: 0.01, ...config }),
    ...{ component: "actor", rank, worldSize, seed: 1 },
    devices: { ids: ["cpu:0"], lock: async () => ({ [Symbol.asyncDispose]: async () => {} }) },
    messages: { allReduceSum: sum },
    timer: () => ({ [Symbol.dispose]: () => {} }),
  } as unknown as WorkerContext<ActorConfig>;
  const worker = new ActorWorker(context);
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
  const alone = await actor(config, 0, 1, allReduce(1));
  const before = flat(await alone.weights());
  const expected = await alone.train(sourceOf([groups]));
  const sum = allReduce(2);
  const ranks = await Promise.all([0, 1].map((rank) => actor(config, rank, 2, sum)));
  const shares = [sourceOf([groups.slice(0, 2), groups.slice(2, 5)]), sourceOf([groups.slice(5)])];
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

test("epochs and minibatches take so many optimiser steps on every rank, though one of them got nothing", async () => {
  const sum = allReduce(2);
  const config = { algorithm: { name: "ppo" }, epochs: 2, minibatches: 3 };
  const ranks = await Promise.all([0, 1].map((rank) => actor(config, rank, 2, sum)));
  const shares = [sourceOf([groups]), sourceOf([])];
  const reported = await Promise.all(ranks.map((rank, index) => rank.train(shares[index] as Source<EpisodeGroup>)));
  for (const { policyVersion } of reported) expect(policyVersion).toBe(6);
  const [first, second] = await Promise.all(ranks.map(async (rank) => flat(await rank.weights())));
  expect(first).toEqual(second);
});

test("W2: with several optimiser steps a call, staleness is still counted in calls", async () => {
  const config = { algorithm: { name: "ppo" }, epochs: 2, minibatches: 1, maxStaleness: 1 };
  const alone = await actor(config, 0, 1, allReduce(1));
  await alone.train(sourceOf([groups]));
  await alone.train(sourceOf([groups])); // two versions old, one call
  await expect(alone.train(sourceOf([groups]))).rejects.toMatchObject({ code: "learning.invalid-batch" });
});
