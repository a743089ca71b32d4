/** Whatever the shape of a worker's loop, the meter and the planner's samples have all that its engine was told to spend. */
import type { ChannelRef, ObservedCall } from "@treadle/contracts";
import { ManualClock, settle } from "@treadle/contracts/testing";
import { EmulatedEngine } from "@treadle/engines";
import fc from "fast-check";
import { expect, test } from "vitest";
import { z } from "zod";
import { Asks } from "../../packages/planner/src/profile/asks.ts";
import { costsOfStep } from "../../packages/planner/src/profile/step-samples.ts";
import { CallMeter } from "../../packages/runtime/src/author/call/call-meter.ts";
import { packItems, SinkClient, SourceClient } from "../../packages/runtime/src/author/channel/channel-client.ts";

type Item = { readonly id: number };
type Part =
  | { readonly does: "work"; readonly rows: number }
  | { readonly does: "take"; readonly source: number }
  | { readonly does: "takeBesideWork"; readonly source: number; readonly rows: number; readonly worksFirst: boolean }
  | { readonly does: "put"; readonly sink: number; readonly isAwaited: boolean }
  | { readonly does: "lock" }
  | { readonly does: "send" };

const part: fc.Arbitrary<Part> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ does: fc.constant("work" as const), rows: fc.integer({ min: 1, max: 20 }) }) },
  { weight: 2, arbitrary: fc.record({ does: fc.constant("take" as const), source: fc.integer({ min: 1, max: 2 }) }) },
  fc.record({
    does: fc.constant("takeBesideWork" as const),
    source: fc.integer({ min: 1, max: 2 }),
    rows: fc.integer({ min: 1, max: 120 }),
    worksFirst: fc.boolean(),
  }),
  fc.record({ does: fc.constant("put" as const), sink: fc.integer({ min: 0, max: 1 }), isAwaited: fc.boolean() }),
  fc.constantFrom<Part>({ does: "lock" }, { does: "send" }),
);

/** `rounds`: takes of the first source; `asksAhead`: for the next round's items before it works on this one's. */
const loop = fc.record({
  parts: fc.array(part, { minLength: 1, maxLength: 7 }),
  rounds: fc.integer({ min: 1, max: 6 }),
  chunk: fc.integer({ min: 1, max: 4 }),
  lastChunk: fc.integer({ min: 1, max: 4 }),
  asksAhead: fc.boolean(),
  answerMs: fc.integer({ min: 1, max: 90 }),
  baseMs: fc.integer({ min: 0, max: 20 }),
  optimStepMs: fc.integer({ min: 0, max: 50 }),
});
type Loop = typeof loop extends fc.Arbitrary<infer Value> ? Value : never;

const refOf = (name: string, role: ChannelRef["role"]): ChannelRef => ({
  $channel: name,
  role,
  granularity: "all",
  schema: { module: "", exportName: "" },
});
const Item: z.ZodType<Item> = z.object({ id: z.number() });

async function observe(shape: Loop): Promise<{ call: ObservedCall; toldMs: number; items: number }> {
  const clock = new ManualClock();
  const engine = EmulatedEngine.create(
    {
      logprobs: { unitSeconds: 0.001, baseSeconds: shape.baseMs / 1000 },
      optimStepSeconds: shape.optimStepMs / 1000,
    },
    { clock },
  );
  const meter = new CallMeter({
    now: () => clock.now(),
    idle: () => engine.idle(),
    cpuMs: () => 0,
    queuedMs: () => 0,
  });
  const counts = Array.from({ length: shape.rounds }, (_, i) =>
    i === shape.rounds - 1 ? Math.min(shape.chunk, shape.lastChunk) : shape.chunk,
  );
  let toldMs = 0;
  const left = new Map<string, number[]>();
  const home = {
    put: () => clock.sleep(shape.answerMs),
    take: async ({ channel }: { channel: string }) => {
      await clock.sleep(shape.answerMs);
      const rest = left.get(channel) ?? [...counts];
      left.set(channel, rest);
      const count = rest.shift();
      if (count === undefined) return null;
      const items = Array.from({ length: count }, (_, id) => ({ id }));
      return { blocks: [packItems(items, refOf(channel, "source"), Item)] };
    },
  };
  const sources = ["main", "second", "third"].map(
    (name) =>
      new SourceClient<Item>(
        refOf(name, "source"),
        home,
        () => "call",
        () => meter.channelWait(name, "source"),
      ),
  );
  const sinks = ["done", "copied"].map(
    (name) =>
      new SinkClient<Item>(
        refOf(name, "sink"),
        Item,
        home,
        () => "call",
        () => meter.channelWait(name, "sink"),
      ),
  );
  const [main] = sources as [SourceClient<Item>];
  const work = async (rows: number): Promise<void> => {
    toldMs += rows + shape.baseMs;
    await engine.logprobs({ rows, columns: 1, tokens: new Int32Array(rows) });
  };
  const act = async (each: Part, batch: readonly Item[], pending: Promise<void>[]): Promise<void> => {
    if (each.does === "take") await sources[each.source]?.take();
    else if (each.does === "send") meter.contacted("actor/0");
    else if (each.does === "lock") {
      using _ = meter.lockWait();
      await clock.sleep(shape.answerMs);
    } else if (each.does === "put") {
      const put = sinks[each.sink]?.put(...batch) as Promise<void>;
      if (each.isAwaited) await put;
      else pending.push(put);
    } else if (each.does === "takeBesideWork") {
      const take = sources[each.source]?.take();
      await Promise.all(each.worksFirst ? [work(each.rows), take] : [take, work(each.rows)]);
    } else await work(each.rows);
  };
  const run = async () => {
    const pending: Promise<void>[] = [];
    let next = shape.asksAhead ? main.take() : undefined;
    for (;;) {
      const batch = await (next ?? main.take());
      if (!batch) break;
      if (shape.asksAhead) next = main.take();
      for (const each of shape.parts) await act(each, batch, pending);
    }
    await Promise.all(pending);
    toldMs += shape.optimStepMs;
    await engine.optimStep({ learningRate: 0, scale: 1 });
    return meter.finish({ onloadMs: 0, offloadMs: 0, memoryBytes: 0 });
  };
  let observation: Awaited<ReturnType<typeof run>> | undefined;
  const running = run().then((value) => {
    observation = value;
  });
  while (!observation) await clock.advance(1000);
  await Promise.all([running, settle()]);
  const items = counts.reduce((sum, count) => sum + count, 0);
  const call = {
    ...observation,
    component: "actor",
    method: "train",
    rank: 0,
    sequence: 0,
    step: 1,
    durationMs: clock.now(),
  };
  return { call, toldMs, items };
}

test("a call is busy for all that it computes, however it takes, puts, sends or locks", async () => {
  await fc.assert(
    fc.asyncProperty(loop, async (shape) => {
      const { call, toldMs } = await observe(shape);
      expect(call.busyMs).toBeCloseTo(toldMs, 6);
    }),
    { numRuns: 60 },
  );
});

test("the chunks of a step have all of it, whichever channel they are of", async () => {
  await fc.assert(
    fc.asyncProperty(loop, async (shape) => {
      const { call, toldMs, items } = await observe(shape);
      const channels = Object.fromEntries(
        ["main", "second", "third"].map((name) => [
          name,
          { producers: [], consumers: ["actor"], itemsPerStep: items, bytesPerStep: 0 },
        ]),
      );
      const graph = { components: {}, channels, edges: [], calls: [], cycles: [], batch: items };
      const layouts = new Map([["actor", { devices: 1, ranks: 1, isOnProcessors: false }]]);
      const { samples } = costsOfStep([call], layouts, graph, new Asks([call]));
      const asksMs = new Asks([call]).ofCalls([call]).reduce((sum, ms) => sum + ms, 0);
      const [sample] = samples;
      const stepMs = (1000 * sample!.seconds - asksMs) * (items / sample!.items);
      // A last chunk that is smaller costs no less for its base than the others, of which it is a part here.
      const perRoundMs = toldMs / shape.rounds;
      expect(stepMs).toBeGreaterThanOrEqual(toldMs - perRoundMs - 1e-6);
      expect(stepMs).toBeLessThanOrEqual(toldMs + perRoundMs + 1e-6);
      if (items === shape.chunk * shape.rounds) expect(stepMs).toBeCloseTo(toldMs, 6);
    }),
    { numRuns: 60 },
  );
});
