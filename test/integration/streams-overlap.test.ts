import { afterEach, expect, test } from "vitest";
import { startCluster, type TestCluster } from "../support/cluster.ts";
import { Numbers } from "../support/workers/probe.ts";
import { StreamingWorker } from "../support/workers/streaming.ts";

let world: TestCluster;
afterEach(() => world.close());

test("C6: outputs pass on at the commit of their item, in any order, while others are in flight", async () => {
  world = await startCluster({ cluster: { devices: 1 } });
  const { cluster } = world;
  const one = (name: string) => cluster.launch(StreamingWorker, {}, { name, ranks: { fixed: 1 } });
  const [streaming, driver] = [await one("streaming"), await one("driver")];
  const items = cluster.channel("items", Numbers);
  const goes = cluster.channel("goes", Numbers);
  const doubled = cluster.channel("doubled", Numbers);
  await items.put(1, 2, 3);
  const streamed = streaming.double(items.source, goes.source, doubled.sink).first();
  // Each output is seen before the next go is given: no later take of the one that streams has set it free.
  expect(await driver.drive(goes.sink, doubled.source, [2, 3, 1]).first()).toEqual([4, 6, 2]);
  expect(await streamed).toBe(3);
});

test("C6: of a batch, too, outputs pass on at the commit of their item; batches are as large as planned", async () => {
  world = await startCluster({ cluster: { devices: 1 }, flow: { granularity: { items: 3 } } });
  const { cluster } = world;
  const one = (name: string) => cluster.launch(StreamingWorker, {}, { name, ranks: { fixed: 1 } });
  const [streaming, driver] = [await one("streaming"), await one("driver")];
  const items = cluster.channel("items", Numbers);
  const goes = cluster.channel("goes", Numbers);
  const doubled = cluster.channel("doubled", Numbers);
  await items.put(1, 2, 3, 4, 5);
  const streamed = streaming.doubleBatches(items.source, goes.source, doubled.sink).first();
  expect(await driver.drive(goes.sink, doubled.source, [2, 3, 1, 5, 4]).first()).toEqual([4, 6, 2, 10, 8]);
  expect(await streamed).toEqual([3, 2]);
});
