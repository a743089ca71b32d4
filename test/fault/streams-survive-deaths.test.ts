import { createRandom } from "@treadle/learning";
import { afterEach, expect, test } from "vitest";
import { pidOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { Numbers } from "../support/workers/probe.ts";
import { StreamingWorker } from "../support/workers/streaming.ts";

let world: TestCluster;
afterEach(() => world.close());

const numItems = 240;
const numDeaths = 4;

test.each([
  ["spread", "items"],
  ["spreadBatches", "batches"],
] as const)(
  "C1, C6: '%s': whichever rank is killed while it streams %s, whenever, each item has its outputs once",
  async (method, _what) => {
    const flow = { granularity: { items: 8 } };
    world = await startCluster({ cluster: { devices: 1 }, flow, supervision: { maxRestarts: 2 * numDeaths } });
    const { cluster, events } = world;
    const random = createRandom(`${process.env.TREADLE_SEED}`);
    const group = await cluster.launch(StreamingWorker, {}, { ranks: { fixed: 2 } });
    const items = cluster.channel("items", Numbers);
    // So small that they also die while a commit waits for room, and that no rank gets through all items meanwhile.
    const doubled = cluster.channel("doubled", Numbers, { capacity: 6 });
    await items.put(...Array.from({ length: numItems }, (_, at) => at));
    const streamed = group[method](items.source, doubled.sink, { ms: 30 });

    const seen: number[] = [];
    const takeUntil = async (count: number) => {
      while (seen.length < count) seen.push(...((await doubled.take({ items: 1 })) as number[]));
    };
    const count = (type: string) => events.filter((event) => event.type === type).length;
    await until(() => count("worker-started") === 2, "both ranks to start", 120_000);
    for (let death = 0; death < numDeaths; death++) {
      await takeUntil((death * numItems) / (2 * numDeaths) + random.integer(numItems / (2 * numDeaths)));
      await new Promise((resolve) => setTimeout(resolve, random.integer(20)));
      process.kill(pidOf(events, `streaming/${random.integer(2)}`), "SIGKILL");
      await until(() => count("worker-restarted") > death, "the rank to be replaced", 120_000);
    }
    await takeUntil(numItems);
    await streamed;
    expect(seen.sort((a, b) => a - b)).toEqual(Array.from({ length: numItems }, (_, at) => 2 * at));
    expect(cluster.channelDepths).toContainEqual({ channel: "doubled", depth: 0 });
  },
);
