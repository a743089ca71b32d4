/** Whatever the shape of a worker's loop, the meter and the planner's samples have all that its engine was told to spend. */
import type { ChannelRef, ObservedCall, Peer } from "@treadle/contracts";
import { ManualClock, settle } from "@treadle/contracts/testing";
import { EmulatedEngine } from "@treadle/engines";
import fc from "fast-check";
import { expect, test } from "vitest";
import { z } from "zod";
import { Asks } from "../../packages/planner/src/profile/asks.ts";
import { costsOfStep } from "../../packages/planner/src/profile/step-samples.ts";
import { type CallContext, runInCall } from "../../packages/runtime/src/author/call/call-context.ts";
import { CallMeter } from "../../packages/runtime/src/author/call/call-meter.ts";
import { packItems, SinkClient, SourceClient } from "../../packages/runtime/src/author/channel/channel-client.ts";
import { CallHandle } from "../../packages/runtime/src/author/group/handle.ts";
import { Messenger } from "../../packages/runtime/src/author/messages/messenger.ts";

type Item = { readonly id: number };
type Part =
  | { readonly does: "work"; readonly rows: number }
  | { readonly does: "take"; readonly source: number }
  | { readonly does: "takeBesideWork"; readonly source: number; readonly rows: number; readonly worksFirst: boolean }
  | { readonly does: "put"; readonly sink: number; readonly isAwaited: boolean }
  | { readonly does: "lock" }
  | { readonly does: "ask"; readonly what: Asked; readonly when: "at once" | "later" | "beside work" };

/** Of other workers: a message to one, the next of one, a collective of the group, a method's results, or the first. */
type Asked = "send" | "recv" | "gather" | "answer" | "call" | "first";

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
  fc.constant<Part>({ does: "lock" }),
  fc.record({
    does: fc.constant("ask" as const),
    what: fc.constantFrom<Asked>("send", "recv", "gather", "answer", "call", "first"),
    when: fc.constantFrom("at once" as const, "later" as const, "beside work" as const),
  }),
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

const never = new AbortController().signal;

/** Whatever is asked of them is there, or has arrived, after so long. */
function otherWorkers(clock: ManualClock, answerMs: number): { ask(what: Asked): PromiseLike<unknown> } {
  const peer = { request: () => clock.sleep(answerMs) } as unknown as Peer;
  const messenger = new Messenger({
    component: "actor",
    rank: 0,
    worldSize: 2,
    incarnation: 1,
    node: "here",
    connect: async () => peer,
    reachable: async () => {},
    nodesOf: async (workers) => workers.map(() => "here"),
    peerTimeoutMs: 2 ** 30,
  });
  let collectives = 0;
  const arrives = async (from: string, tag: string) => {
    await clock.sleep(answerMs);
    await messenger.deliver({ from, incarnation: 1, tag, value: 1 });
  };
  const handle = () => {
    const reply = (rank: number) => ({ value: rank, durationMs: 1, timers: {} });
    const replies = [0, 1].map((rank) => clock.sleep((answerMs * (1 + rank)) / 2).then(() => reply(rank)));
    return new CallHandle("critic.values", [0, 1], replies, () => {});
  };
  return {
    ask: (what) => {
      if (what === "send") return messenger.send("critic/0", 1);
      if (what === "call") return handle();
      if (what === "first") return handle().first();
      if (what === "answer") return messenger.answer("critic/0", "its values", handle());
      const from = what === "recv" ? "critic/0" : "actor/1";
      void arrives(from, what === "recv" ? "values" : `#gather.call.${collectives++}`);
      return what === "recv" ? messenger.recv(from, "values") : messenger.gather(1);
    },
  };
}

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
  const others = otherWorkers(clock, shape.answerMs);
  const work = async (rows: number): Promise<void> => {
    toldMs += rows + shape.baseMs;
    await engine.logprobs({ rows, columns: 1, tokens: new Int32Array(rows) });
  };
  const act = async (each: Part, batch: readonly Item[], pending: PromiseLike<unknown>[]): Promise<void> => {
    if (each.does === "take") await sources[each.source]?.take();
    else if (each.does === "ask") {
      const asked = others.ask(each.what);
      if (each.when === "later") pending.push(asked);
      else await (each.when === "at once" ? asked : Promise.all([asked, work(7)]));
    } else if (each.does === "lock") {
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
    const pending: PromiseLike<unknown>[] = [];
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
  const context: CallContext = { call: "call", method: "train", step: 1, signal: never, timers: {}, meter };
  const running = runInCall(context, run).then((value) => {
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
