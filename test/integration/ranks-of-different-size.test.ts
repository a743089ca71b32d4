import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { RolloutConfig, RolloutWorker } from "@treadle/workers";
import { afterEach, expect, test } from "vitest";
import { startCluster, type TestCluster } from "../support/cluster.ts";

let world: TestCluster;
afterEach(() => world.close());

const usual = {
  model: { vocabSize: 12, layers: 1, width: 8, heads: 1, contextLength: 64 },
  alphabet: "0123456789",
  groupSize: 4,
  maxTokens: 40,
  reward: { name: "arithmetic" },
  emulated: {
    slots: 4,
    tokenTime: { 1: 0.016, 2: 0.008, 4: 0.002 },
    decode: { baseSeconds: 0.96, unitSeconds: 0.04 },
    response: { medianTokens: 12, spread: 0.6 },
  },
};
const numPrompts = 24;

/** Tokens that each rank put, and the episodes of each prompt, whichever ended first. */
async function rollOut(changes: Partial<RolloutConfig>) {
  world = await startCluster({
    cluster: { devices: 8 },
    placement: { mode: "temporal" },
    flow: { granularity: 1 },
    batch: numPrompts,
  });
  const { cluster } = world;
  const rollout = cluster.launch(RolloutWorker, RolloutConfig.parse({ ...usual, ...changes }));
  const prompts = cluster.channel("prompts", Prompt);
  const groups = cluster.channel("groups", EpisodeGroup);
  await cluster.start();
  await prompts.put(
    ...Array.from({ length: numPrompts }, (_, i) => ({ id: `p${i}`, tokens: Int32Array.of(1, 2), answer: "1" })),
  );
  const metrics = rollout.generate(prompts.source, groups.sink);
  const made: EpisodeGroup[] = [];
  for await (const batch of groups.batches({ items: numPrompts })) made.push(...batch);
  const tokens = (await metrics).map((each) => each.tokens);
  const episodes = made
    .sort((a, b) => (a.promptId < b.promptId ? -1 : 1))
    .map(({ episodes }) => episodes.map((episode) => episode.tokens.join(" ")).sort());
  return { tokens, episodes };
}

test("ranks of listed sizes generate the same tokens as equal ones, and those on more devices more of them", async () => {
  const listed = await rollOut({ degrees: [1, 4, 2], placement: "own" });
  const plan = world.events.find((event) => event.type === "plan");
  const devices = [6, 0, 1, 2, 3, 4, 5].map((index) => `cpu:${index}`);
  expect(plan?.placement).toEqual([expect.objectContaining({ component: "rollout", devices })]);
  await world.close();
  const equal = await rollOut({ placement: "own" });
  expect(listed.episodes).toEqual(equal.episodes);
  const [slow, fast] = listed.tokens as [number, number];
  expect(fast).toBeGreaterThan(slow);
  await world.close();
  const shared = await rollOut({ degrees: [1, 4, 2], placement: "predicted", migrate: "pays", scheduler: "pps" });
  expect(shared.episodes).toEqual(equal.episodes);
});

test("sizes that exceed the devices, or are said twice, are refused before a process starts", async () => {
  await expect(rollOut({ degrees: [4, 4, 1] })).rejects.toThrow(
    /component 'rollout' has ranks of '4, 4, 1' devices, which are 9, but it is given 8 \(0-7\); list fewer or smaller ones/,
  );
  await world.close();
  world = await startCluster({ cluster: { devices: 8 } });
  const config = RolloutConfig.parse({ ...usual, degrees: [4, 2] });
  expect(() => world.cluster.launch(RolloutWorker, config, { devicesPerRank: 2 })).toThrow(
    "'rollout' is launched with 'devicesPerRank', and its configuration lists the devices of each rank ('4, 2')",
  );
});
