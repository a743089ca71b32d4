import { type ItemBlock, TakeRequest, TreadleError } from "@treadle/contracts";
import { decodeItems } from "@treadle/transport";
import { expect, test } from "vitest";
import { runInCall } from "../../src/author/call/call-context.ts";
import { SinkClient, SourceClient } from "../../src/author/channel/channel-client.ts";
import { type ArgumentPorts, decodeArguments, mapArguments } from "../../src/author/group/call-arguments.ts";
import { createGroup, describeGroup, type WorkerGroup } from "../../src/author/group/group.ts";
import type { CallHandle } from "../../src/author/group/handle.ts";

const call = { call: "7/1", method: "m", step: 1, signal: new AbortController().signal, timers: {} };

const schema = { module: new URL("../support/schemas.ts", import.meta.url).href, exportName: "Anything" };

function ports() {
  const puts: unknown[] = [];
  const takes: unknown[] = [];
  const calls: unknown[] = [];
  const port: ArgumentPorts = {
    moduleHere: async (module) => module,
    home: {
      put: async (request) => void puts.push(request),
      take: async (request) => {
        takes.push(request);
        return null;
      },
    },
    waiting: () => ({ awaited() {}, moved() {}, [Symbol.dispose]() {} }),
    callWorker: async (worker, method, args) => {
      calls.push({ worker, method, args });
      return { value: `${worker} says hi`, durationMs: 2000, timers: {} };
    },
  };
  return { port, puts, takes, calls };
}

test("values without references stay the very same objects when they are not plain", () => {
  const array = new Float32Array(3);
  const date = new Date();
  const map = new Map([["a", { $channel: "x" }]]);
  const value = { array, list: [1, date, "text"], map, none: null, gone: undefined };
  const mapped = mapArguments(value, () => undefined) as typeof value;
  expect(mapped).toEqual(value);
  expect(mapped.array).toBe(array);
  expect(mapped.list[1]).toBe(date);
  expect(mapped.map).toBe(map);
});

test("references are found down to four levels", () => {
  const seen: object[] = [];
  const find = (value: object) => {
    if ("$channel" in value) seen.push(value);
    return undefined;
  };
  mapArguments([[[{ $channel: 1 }]]], find);
  mapArguments({ a: { b: { c: { $channel: 2 } } } }, find);
  expect(seen).toEqual([{ $channel: 1 }, { $channel: 2 }]);
});

test("sources and sinks become clients that speak for the call under way", async () => {
  const { port, puts, takes } = ports();
  const [options, sink] = (await decodeArguments(
    [
      { from: { $channel: "prompts", role: "source", granularity: 4, schema } },
      { $channel: "episodes", role: "sink", granularity: "all", key: "id", weight: "n", schema },
    ],
    port,
  )) as [{ from: SourceClient<unknown> }, SinkClient<unknown>];
  expect(options.from).toBeInstanceOf(SourceClient);
  expect(sink).toBeInstanceOf(SinkClient);
  await runInCall(call, async () => {
    expect(await options.from.take()).toBeUndefined();
    expect(await options.from.take({ items: 2, weight: 9, acknowledge: "call" })).toBeUndefined();
    expect(await options.from.take({ gang: true })).toBeUndefined();
    expect(await options.from.take({ items: 0, gang: true })).toBeUndefined();
    await sink.put({ id: "a", n: 2 }, { id: "b", n: 3 });
    await sink.put();
  });
  expect(takes).toEqual([
    { channel: "prompts", call: "7/1", acknowledge: true, maxItems: 4, minItems: 4 },
    { channel: "prompts", call: "7/1", acknowledge: false, maxItems: 2, minItems: 2, maxWeight: 9 },
    { channel: "prompts", call: "7/1", acknowledge: true, maxItems: 4, inGang: true },
    { channel: "prompts", call: "7/1", acknowledge: true, maxItems: 0, inGang: true },
  ]);
  expect(puts).toHaveLength(1);
  expect(puts[0]).toMatchObject({ call: "7/1", items: { keys: ["a", "b"], weights: Float64Array.of(2, 3) } });
});

test("ranks that take together are bounded by items alone, on a channel without a key, and are told so", async () => {
  const { port, takes } = ports();
  const [keyed, free] = (await decodeArguments(
    [
      { $channel: "answers", role: "source", granularity: 1, key: "id", schema },
      { $channel: "episodes", role: "source", granularity: 1, schema },
    ],
    port,
  )) as [SourceClient<unknown>, SourceClient<unknown>];
  await runInCall(call, async () => {
    const refusal = { code: "workflow.invalid" };
    await expect(keyed.take({ gang: true })).rejects.toMatchObject({
      ...refusal,
      message: expect.stringContaining("'answers' has 'gang' and the key 'id'"),
    });
    await expect(free.take({ gang: true, weight: 9 })).rejects.toMatchObject({
      ...refusal,
      message: expect.stringContaining("'episodes' has 'gang' and the weight '9'"),
    });
  });
  expect(takes).toEqual([]);
  const none = { channel: "episodes", call: "7/1", acknowledge: true, maxItems: 0 };
  expect(TakeRequest.safeParse({ ...none, inGang: true }).success).toBe(true);
  expect(TakeRequest.safeParse(none).success).toBe(false);
});

test("a channel used outside of a call says so", async () => {
  const { port } = ports();
  const [source] = (await decodeArguments([{ $channel: "c", role: "source", granularity: 1, schema }], port)) as [
    SourceClient<unknown>,
  ];
  await expect(source.take()).rejects.toMatchObject({ code: "workflow.invalid" });
});

test("a field of each object in an array weighs by its sum, and is refused where one of them has none", async () => {
  const { port, puts } = ports();
  const [sink] = (await decodeArguments(
    [{ $channel: "c", role: "sink", granularity: 1, weight: "parts.tokens", schema }],
    port,
  )) as [SinkClient<unknown>];
  const parts = [{ tokens: Int32Array.of(1, 2, 3) }, { tokens: [4, 5] }, { tokens: 6 }];
  await runInCall(call, () => sink.put({ parts }, { parts: [] }));
  expect(puts[0]).toMatchObject({ items: { weights: Float64Array.of(11, 0) } });
  const put = runInCall(call, () => sink.put({ parts: [{ tokens: 1 }, {}] }));
  await expect(put).rejects.toMatchObject({
    code: "channel.invalid-item",
    message: expect.stringContaining("'parts.tokens'"),
  });
});

test("a weight or priority that is no finite number is refused before anything is sent", async () => {
  const { port, puts } = ports();
  const [sink] = (await decodeArguments(
    [{ $channel: "c", role: "sink", granularity: 1, priority: "p", schema }],
    port,
  )) as [SinkClient<unknown>];
  const put = runInCall(call, () => sink.put({ p: 1 }, { p: Number.NaN }));
  await expect(put).rejects.toMatchObject({ code: "channel.invalid-item", message: expect.stringContaining("'1'") });
  expect(puts).toEqual([]);
});

test("a group reference calls its workers directly, all of them or some", async () => {
  const { port, calls } = ports();
  type Greeter = { greet(name: string): Promise<string> };
  const [group] = (await decodeArguments([{ $group: "actor", size: 3, methods: ["greet"] }], port)) as [
    WorkerGroup<Greeter>,
  ];
  const greet = (group as unknown as Record<string, (name: string) => CallHandle<string>>)["greet"] as (
    name: string,
  ) => CallHandle<string>;
  const handle = greet("x");
  expect(await handle).toEqual(["actor/0 says hi", "actor/1 says hi", "actor/2 says hi"]);
  expect(await handle.reducedSeconds()).toBe(2);
  expect(calls).toHaveLength(3);
  expect(describeGroup(group)).toEqual({ name: "actor", size: 3, methods: ["greet"] });
});

test("a restricted group stays restricted as an argument", async () => {
  const { port, calls } = ports();
  const [group] = (await decodeArguments([{ $group: "actor", size: 3, methods: ["greet"], ranks: [2] }], port)) as [
    Record<string, () => CallHandle<string>> & { size: number },
  ];
  expect(group.size).toBe(1);
  expect(await group["greet"]?.()).toEqual(["actor/2 says hi"]);
  expect(calls).toEqual([{ worker: "actor/2", method: "greet", args: [] }]);
});

test("workers do not hand channels on to one another", async () => {
  const { port } = ports();
  const [source, group] = (await decodeArguments(
    [
      { $channel: "c", role: "source", granularity: 1, schema },
      { $group: "actor", size: 1, methods: ["use"] },
    ],
    port,
  )) as [unknown, Record<string, (arg: unknown) => unknown>];
  expect(() => group["use"]?.({ source })).toThrow("only the workflow passes channels");
});

test("ranks of a group are whole numbers within it, at least one, each once", () => {
  const group = createGroup<Record<string, never>>({ name: "actor", size: 2, methods: [] }, () => {
    throw new Error("not called");
  });
  expect(group.onRanks(1, 0).size).toBe(2);
  for (const ranks of [[2], [-1], [0.5], [], [0, 0]]) {
    expect(() => group.onRanks(...ranks)).toThrow(TreadleError);
  }
});

test("a producer parses with what its module exports as the schema, and begins with nothing else", async () => {
  const { port, puts } = ports();
  const sink = (exportName: string) => [
    { $channel: "c", role: "sink", granularity: 1, schema: { ...schema, exportName } },
  ];
  const [counted] = (await decodeArguments(sink("Counted"), port)) as [SinkClient<unknown>];
  await runInCall(call, async () => {
    await counted.put({ id: "a" });
    await expect(counted.put({ id: "b" }, { id: 7 })).rejects.toMatchObject({
      code: "channel.invalid-item",
      message: expect.stringMatching(/^item '1' put into channel 'c' does not fit its schema: id: /),
    });
  });
  const [put] = puts as { items: ItemBlock }[];
  expect(puts).toHaveLength(1);
  expect(decodeItems((put as { items: ItemBlock }).items)).toEqual([{ id: "a", count: 1 }]);
  for (const name of ["Nothing", "notASchema"]) {
    await expect(decodeArguments(sink(name), port)).rejects.toMatchObject({
      code: "worker.load-failed",
      message: expect.stringContaining(`does not export a schema '${name}'`),
    });
  }
});
