import { existsSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { startCluster, type TestCluster } from "../support/cluster.ts";
import { Load, LooseWorker, SteppingWorker } from "../support/workers/stepping.ts";

let world: TestCluster;
afterEach(() => world.close());

const loads = [9, 1, 1, 4, 7, 2, 8, 3, 5, 6, 1].map((tokens, id) => ({ id, tokens }));
const weightOf = (batch: readonly Load[]) => batch.reduce((sum, { tokens }) => sum + tokens, 0);

async function start(granularity: number | "all", workerClass = SteppingWorker) {
  world = await startCluster({ cluster: { devices: 3 }, flow: { granularity } });
  const group = world.cluster.launch(workerClass, {}, { name: "stepping", ranks: { fixed: 3 } });
  const channel = world.cluster.channel("loads", Load, { weight: "tokens" });
  await channel.put(...loads);
  return { group, channel };
}

test.each([2, "all"] as const)(
  "C8, C1: ranks that meet after every batch get equally many of like weight, and begin together again when one dies; granularity %s",
  async (granularity) => {
    const { group, channel } = await start(granularity);
    const death = join(world.folder, "death");
    const perRank = await group.follow(channel.source, granularity === 2 ? { death } : {});
    expect(existsSync(death)).toBe(granularity === 2);
    const ids = perRank.flat(2).map(({ id }) => id);
    expect(ids.toSorted((a, b) => a - b)).toEqual(loads.map(({ id }) => id));
    const numRounds = granularity === 2 ? 2 : 1;
    for (const rounds of perRank) expect(rounds).toHaveLength(numRounds);
    for (let round = 0; round < numRounds; round++) {
      const weights = perRank.map((rounds) => weightOf(rounds[round] as Load[]));
      expect(Math.max(...weights) - Math.min(...weights)).toBeLessThanOrEqual(9);
    }
  },
);

test("C8: ranks may add unequal parts to a round, or none, and one may get nothing", async () => {
  const { group, channel } = await start("all");
  const perRank = await group.takeOnce(channel.source, [2, 0, 0]);
  expect(perRank.map((batch) => batch.map(({ id }) => id))).toEqual([[0], [1], []]);
});

test("ranks that start again one by one are refused, by name and with the remedy", async () => {
  const { group, channel } = await start("all", LooseWorker);
  await expect(group.follow(channel.source)).rejects.toMatchObject({
    code: "workflow.invalid",
    message: expect.stringMatching(/'stepping\/\d' takes from channel 'loads' with 'gang'.*static restart = "group"/),
  });
});
