import type { WorkerGroup } from "@treadle/runtime";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { pidOf, segmentsOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import * as largeModule from "../support/workers/large.ts";
import { LargeItem, LargeWorker, largeItem } from "../support/workers/large.ts";

const workflow = { url: LargeWorker.module, exports: { ...largeModule } };
const line = (at: number, numValues: number, first = at) =>
  `item-${at} Float32Array ${numValues} ${first} ${at} ${2n ** 70n} ${at} 1,2`;
/** Above what is copied out of shared memory on arrival: these are seen in place. */
const hugeValues = 8 * 2 ** 20;
const largeValues = 2 ** 18;

describe("large items stay with their producer until they are taken", () => {
  let world: TestCluster;
  let producer: WorkerGroup<LargeWorker>;
  let consumer: WorkerGroup<LargeWorker>;
  const kept = async () => (await segmentsOf(world.runId)).filter((name) => name.includes("-kept-"));

  beforeEach(async () => {
    world = await startCluster({ cluster: { devices: 2 }, flow: { granularity: 1, inlineLimitKiB: 64 } }, workflow);
    producer = await world.cluster.launch(LargeWorker, {}, { name: "producer", ranks: { fixed: 1 } });
    consumer = await world.cluster.launch(LargeWorker, {}, { name: "consumer", ranks: { fixed: 1 } });
    await world.cluster.start();
  });
  afterEach(async () => {
    await world.close();
    expect(await segmentsOf(world.runId)).toEqual([]);
  });

  test("items keep their types, lie in shared memory while they wait, and their memory is used again", async () => {
    const channel = world.cluster.channel("items", LargeItem);
    await producer.put(channel.sink, 0, 3, largeValues);
    expect(await kept()).toHaveLength(3);
    expect(await consumer.take(channel.source)).toEqual([[0, 1, 2].map((at) => line(at, largeValues))]);
    const again = world.cluster.channel("again", LargeItem);
    await producer.put(again.sink, 3, 3, largeValues);
    expect(await kept(), "the three segments were free again").toHaveLength(3);
    expect(await consumer.take(again.source)).toEqual([[3, 4, 5].map((at) => line(at, largeValues))]);
  });

  test("items of one put go both ways at once, in their order", async () => {
    const channel = world.cluster.channel("items", LargeItem);
    await channel.put(largeItem("item-1", 2, 1), largeItem("item-2", largeValues, 2), largeItem("item-3", 2, 3));
    expect(await kept()).toHaveLength(1);
    const batch = await channel.take({ items: 3 });
    expect(batch).toEqual([largeItem("item-1", 2, 1), largeItem("item-2", largeValues, 2), largeItem("item-3", 2, 3)]);
  });

  test("PY2: the producer's death between put and take loses nothing", async () => {
    const channel = world.cluster.channel("items", LargeItem);
    await producer.put(channel.sink, 0, 2, largeValues);
    process.kill(pidOf(world.events, "producer/0"), "SIGKILL");
    await until(() => world.events.some((event) => event.type === "worker-restarted"), "the producer to restart");
    expect(await consumer.take(channel.source)).toEqual([[0, 1].map((at) => line(at, largeValues))]);
    await until(async () => (await kept()).length === 0, "the dead producer's segments to be removed");
  });

  test("what a consumer did to an item before its death is undone when the item comes again (C1)", async () => {
    const channel = world.cluster.channel("items", LargeItem);
    await producer.put(channel.sink, 4, 1, hugeValues);
    const taken = consumer.takeAndDie(channel.source);
    await until(() => world.events.some((event) => event.type === "worker-died"), "the consumer to die");
    taken.cancel();
    await taken.then(undefined, () => {});
    const rest = await channel.take({ items: 1 });
    expect(rest?.[0]?.values.every((value) => value === 4)).toBe(true);
  });

  test("items that a consumer holds never change, whatever is put after them", async () => {
    const channel = world.cluster.channel("items", LargeItem, { capacity: 1 });
    const [taken] = await Promise.all([
      consumer.take(channel.source, true),
      producer.put(channel.sink, 1, 5, hugeValues),
    ]);
    expect(taken).toEqual([[1, 2, 3, 4, 5].map((at) => line(at, hugeValues))]);
    expect(await consumer.kept()).toEqual([[1, 2, 3, 4, 5].map((at) => line(at, hugeValues, -7))]);
  });
});
