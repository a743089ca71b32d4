import { Prompt, type TreadleError } from "@treadle/contracts";
import type { PickFunction } from "@treadle/core";
import type { WorkerGroup } from "@treadle/runtime";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import type { z } from "zod";
import { pidOf, segmentsOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { PlacedItem } from "../support/workers/placed-item.ts";
import * as probeModule from "../support/workers/probe.ts";
import { Item, Nested, ProbeWorker } from "../support/workers/probe.ts";

/** Pick policies as a workflow's module exports them. */
const lightest: PickFunction = (items, { maxItems }) =>
  [...items.keys()].sort((a, b) => (items[a]?.weight ?? 0) - (items[b]?.weight ?? 0)).slice(0, maxItems);
const mute: PickFunction = () => {
  throw Object.create(null);
};

/** The probe's module stands for a workflow's, so that workers find `Nested` there. */
const workflow = { url: ProbeWorker.module, exports: { ...probeModule, lightest, mute } };
const items = (num: number, from = 0) => Array.from({ length: num }, (_, i) => ({ id: from + i, cost: 1 }));
const ids = (batch: unknown) => (batch as { id: number }[]).map(({ id }) => id);

const nested = (id: string): Nested => ({
  id,
  arrays: { f: Float32Array.of(1, 2.5, -3), i: [Int32Array.of(7), new Int32Array(100_000).fill(9)] },
  big: 2n ** 70n,
  when: new Date(5),
  raw: new TextEncoder().encode("raw"),
});

describe("on one cluster", () => {
  let world: TestCluster;
  let producer: WorkerGroup<ProbeWorker>;
  let consumer: WorkerGroup<ProbeWorker>;
  let num = 0;
  const channelOf = <T>(schema: z.ZodType<T>, options?: Parameters<TestCluster["cluster"]["channel"]>[2]) =>
    world.cluster.channel<T>(`channel-${++num}`, schema, options as never);

  beforeAll(async () => {
    world = await startCluster({ cluster: { devices: 2 }, flow: { granularity: 3 } }, workflow);
    producer = await world.cluster.launch(ProbeWorker, {}, { name: "producer", ranks: { fixed: 2 } });
    consumer = await world.cluster.launch(ProbeWorker, {}, { name: "consumer", ranks: { fixed: 2 } });
    await world.cluster.start();
  });
  afterAll(() => world.close());
  afterEach(() => expect(world.cluster.failure).toBeUndefined());

  test("typed items keep their types, from the workflow and from a worker, back to the workflow", async () => {
    const channel = channelOf(Nested);
    const onward = channelOf(Nested);
    await channel.put(nested("a"), nested("b"));
    expect(await consumer.onRanks(0).inspect(channel.source)).toEqual([
      ["a", "b"].map((id) => `${id} Float32Array Int32Array Int32Array Date Uint8Array bigint 3 7,9`),
    ]);
    await channel.put(nested("c"));
    producer.onRanks(0).relay(channel.source, onward.sink, 1);
    expect(await onward.take()).toEqual([nested("c")]);
  });

  test("every item reaches exactly one consumer, and the stream ends when all producers have ended", async () => {
    const channel = channelOf(Item);
    const taken = consumer.consume(channel.source, 4);
    producer.onRanks(0).produce(channel.sink, items(25), 2);
    producer.onRanks(1).produce(channel.sink, items(25, 100), 7);
    const perRank = await taken;
    expect(perRank.flatMap(ids).toSorted((a, b) => a - b)).toEqual([...ids(items(25)), ...ids(items(25, 100))]);
    for (const mine of perRank) {
      const first = ids(mine).filter((id) => id < 100);
      expect(first).toEqual(first.toSorted((a, b) => a - b));
    }
  });

  test("items go through a chain of workers, and each stage ends when the one before has", async () => {
    const [a, b] = [channelOf(Item), channelOf(Item)];
    await a.put(...items(40));
    const relayed = producer.relay(a.source, b.sink, 3);
    const got = await consumer.consume(b.source, 5);
    expect(got.flatMap(ids).toSorted((x, y) => x - y)).toEqual(ids(items(40)));
    expect((await relayed).reduce((sum, each) => sum + each, 0)).toBe(40);
  });

  test("C3: a full channel makes its producer wait for a slow consumer", async () => {
    const channel = channelOf(Item, { capacity: 4 });
    const produced = producer.onRanks(0).produce(channel.sink, items(30));
    let isProduced = false;
    void produced.then(() => (isProduced = true));
    const name = channel.name;
    const depth = () => world.cluster.channelDepths.find((each) => each.channel === name)?.depth as number;
    await until(() => depth() === 4, "the channel to fill");
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(isProduced).toBe(false);
    expect(depth()).toBe(4);
    const depths: number[] = [];
    const watch = setInterval(() => depths.push(depth()), 5);
    const [got] = await consumer.onRanks(0).consume(channel.source, 2, 5);
    clearInterval(watch);
    expect(ids(got)).toEqual(ids(items(30)));
    // A take that waits lets its items through: they need no place.
    expect(Math.max(...depths)).toBeLessThanOrEqual(4 + 2);
    await produced;
  });

  test("C5: by load, whoever has less to do gets more", async () => {
    const channel = channelOf(Item, { pick: "least-loaded", weight: "cost" } as never);
    const heavy = { id: 0, cost: 1000 };
    const taken = consumer.consume(channel.source, 1, 20);
    await channel.put(heavy, ...items(12, 1));
    const perRank = (await taken).map(ids);
    const ofHeavy = perRank.find((mine) => mine.includes(0)) as number[];
    const ofOther = perRank.find((mine) => !mine.includes(0)) as number[];
    expect(ofHeavy.length + ofOther.length).toBe(13);
    expect(ofOther.length).toBeGreaterThan(0);
  });

  test("C5: by a function of the workflow's module, who takes gets what it chooses", async () => {
    const channel = channelOf(Item, { pick: lightest, weight: "cost" } as never);
    await channel.put(...[7, 3, 9, 1].map((cost, id) => ({ id, cost })));
    const [got] = await consumer.onRanks(0).consume(channel.source, 1, 4);
    expect(ids(got)).toEqual([3, 1, 0, 2]);
  });

  test.each([
    ["exported by the workflow's module", Item],
    ["that says where it is exported", PlacedItem],
  ])("a schema %s is applied once, by whoever puts, and what came out of it is sent", async (_, schema) => {
    const channel = channelOf(schema);
    const bare = [{ id: 1 }, { id: 2, cost: 5 }] as never[];
    const parsed = [
      { id: 1, cost: 1 },
      { id: 2, cost: 5 },
    ];
    await channel.put(...bare);
    expect((await consumer.onRanks(0).consume(channel.source, 5)).flat()).toEqual(parsed);
    producer.onRanks(0).produce(channel.sink, bare);
    expect((await consumer.onRanks(0).consume(channel.source, 5)).flat()).toEqual(parsed);
  });

  test("a schema of the contracts is applied by whoever puts", async () => {
    const channel = channelOf(Prompt);
    const sound = { id: "a", tokens: Int32Array.of(1) } as unknown as Prompt;
    producer.onRanks(0).produce(channel.sink, [sound]);
    expect(await channel.take()).toMatchObject([{ id: "a" }]);
  });

  test("a schema that workers cannot find is refused where the channel is defined", () => {
    expect(() => channelOf(Nested.extend({}))).toThrow(expect.objectContaining({ code: "workflow.invalid" }));
  });

  test("granularity from the plan bounds the batches", async () => {
    const channel = channelOf(Item);
    await channel.put(...items(7));
    const sizes: number[] = [];
    for await (const batch of channel.batches()) sizes.push(batch.length);
    expect(sizes).toEqual([3, 3, 1]);
  });

  test("an item that does not fit is refused at put in the workflow, with its number and path, and nothing is put", async () => {
    const channel = channelOf(Nested);
    const bad = { ...nested("b"), arrays: { f: [1, 2], i: [] } } as unknown as Nested;
    await expect(channel.put(nested("a"), bad)).rejects.toMatchObject({
      code: "channel.invalid-item",
      message: expect.stringMatching(/item '1' put into channel 'channel-\d+'.*arrays\.f: /),
    });
    expect(world.cluster.channelDepths.find((each) => each.channel === channel.name)?.depth).toBe(0);
  });
});

test("large items that the workflow puts before anything runs, and those of a producer that dies, arrive", async () => {
  const world = await startCluster({ cluster: { devices: 2 }, supervision: { maxRestarts: 5 } }, workflow);
  const producer = await world.cluster.launch(ProbeWorker, {}, { name: "producer", ranks: { fixed: 1 } });
  const consumer = await world.cluster.launch(ProbeWorker, {}, { name: "consumer", ranks: { fixed: 1 } });
  const [first, second] = [world.cluster.channel("first", Nested), world.cluster.channel("second", Nested)];
  await first.put(nested("a"), nested("b"), nested("c"));
  const [relayed, seen] = [producer.relay(first.source, second.sink, 1), consumer.inspect(second.source)];
  expect(await relayed).toEqual([3]);
  expect(await seen).toEqual([
    ["a", "b", "c"].map((id) => `${id} Float32Array Int32Array Int32Array Date Uint8Array bigint 3 7,9`),
  ]);
  const kept = world.cluster.channel("kept", Nested);
  await producer.produce(kept.sink, [nested("x"), nested("y")]);
  process.kill(pidOf(world.events, "producer/0"), "SIGKILL");
  await until(() => world.events.some((event) => event.type === "worker-restarted"), "the producer to be back");
  expect((await consumer.inspect(kept.source))[0]).toHaveLength(2);
  expect(world.cluster.failure).toBeUndefined();
  await world.close();
  expect(await segmentsOf(world.runId)).toEqual([]);
});

describe("what fails the run", () => {
  let world: TestCluster;
  afterEach(() => world.close());
  const launch = async () => {
    world = await startCluster({ cluster: { devices: 2 } }, workflow);
    const producer = await world.cluster.launch(ProbeWorker, {}, { name: "producer", ranks: { fixed: 1 } });
    const consumer = await world.cluster.launch(ProbeWorker, {}, { name: "consumer", ranks: { fixed: 1 } });
    return { producer, consumer };
  };
  const thrownBy = (work: PromiseLike<unknown>) =>
    work.then(
      () => undefined,
      (error: unknown) => error as TreadleError,
    );

  test("a worker's item that does not fit", async () => {
    const { producer } = await launch();
    const channel = world.cluster.channel("things", Nested);
    const bad = { ...nested("b"), when: "yesterday" };
    const error = await thrownBy(producer.produce(channel.sink, [nested("a"), nested("c"), bad], 3));
    expect(error).toMatchObject({ code: "channel.invalid-item", origin: { worker: "producer/0", method: "produce" } });
    expect(error?.message).toMatch(/item '2' put into channel 'things'.*when: /);
  });

  test("C4, S1: a producer's failure reaches its consumers with the root cause, and is the one reported", async () => {
    const { producer, consumer } = await launch();
    const channel = world.cluster.channel("things", Item);
    const taken = thrownBy(consumer.consume(channel.source, 100));
    const produced = await thrownBy(producer.produceThenFail(channel.sink, items(3)));
    const error = await taken;
    expect(error).toMatchObject({ code: "channel.producer-failed", details: { producer: "producer/0" } });
    expect(error?.message).toContain("the well ran dry");
    expect((error?.cause as TreadleError | undefined)?.origin).toMatchObject({
      worker: "producer/0",
      method: "produceThenFail",
    });
    expect(world.cluster.failure).toBe(produced);
    expect(produced?.message).toContain("the well ran dry");
  });

  test.each([
    ["before its consumer asks", true],
    ["while it waits, so that the policy is asked when the producer ends", false],
  ])(
    "C5: a pick policy that throws what has no text, of items that are put %s: the run fails with its name",
    async (_, isFirst) => {
      const { producer, consumer } = await launch();
      await world.cluster.start();
      const channel = world.cluster.channel("things", Item, { pick: mute });
      const produced = isFirst ? producer.produce(channel.sink, items(3)) : undefined;
      if (isFirst) await produced;
      const taken = thrownBy(consumer.consume(channel.source, 10));
      if (!isFirst) await thrownBy(producer.produce(channel.sink, items(3)));
      const error = await world.failure;
      expect(error).toMatchObject({ code: "channel.pick-failed" });
      expect(error.message).toContain(
        "the pick policy 'mute' of channel 'things' failed: it threw what cannot be read",
      );
      expect(await taken).toMatchObject({ code: "channel.pick-failed" });
    },
  );

  test("S3: a run that waits for what nobody will bring says so, and ends", async () => {
    world = await startCluster({ cluster: { devices: 2 }, supervision: { stallMs: 600 } }, workflow);
    const consumer = await world.cluster.launch(ProbeWorker, {}, { name: "consumer", ranks: { fixed: 1 } });
    await world.cluster.start();
    const channel = world.cluster.channel("nothing", Item);
    const error = await thrownBy(consumer.consume(channel.source, 1));
    expect(error).toMatchObject({ code: "workflow.invalid" });
    expect(error?.message).toMatch(
      /nothing moved for \d+ s: 'consumer.consume' waits for items of 'nothing', into which no open call puts/,
    );
  });

  test("S3: so does a workflow that itself waits, on a channel that nobody fills", async () => {
    world = await startCluster({ cluster: { devices: 1 }, supervision: { stallMs: 600 } }, workflow);
    await world.cluster.launch(ProbeWorker, {});
    await world.cluster.start(); // waiting for a start is no standstill of the workflow
    void thrownBy(world.cluster.channel("empty", Item).take());
    const error = await world.failure;
    expect(error.message).toContain("the workflow waits for items of 'empty', into which no open call puts");
  });
});
