/** Whatever the shape of a worker's loop, the meter and the planner's samples have all that its engine was told to spend (CM1, CM2). */
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
import { EngineWorker } from "../../packages/workers/src/engine-worker.ts";
import { contextOf } from "../../packages/workers/test/support/context.ts";

type Item = { readonly id: number };
type Part = Simple | Mixed;
type Simple =
  | { readonly does: "work"; readonly rows: number }
  | { readonly does: "take"; readonly source: number }
  | { readonly does: "takeBesideWork"; readonly source: number; readonly rows: number; readonly worksFirst: boolean }
  | { readonly does: "put"; readonly sink: number; readonly isAwaited: boolean }
  | { readonly does: "lock" }
  | { readonly does: "ask"; readonly what: Asked; readonly when: "at once" | "later" | "beside work" };

/** Of which what is worked on begins while something is waited for, or is asked for and not yet waited for. */
type Mixed =
  | { readonly does: "both"; readonly branches: readonly (readonly Simple[])[] }
  | { readonly does: "guard"; readonly of: Guarded; readonly by: Guard; readonly rows: number; readonly isOwn: boolean }
  | { readonly does: "race"; readonly source: number; readonly afterMs: number; readonly rows: number }
  | { readonly does: "pauseBesideTake"; readonly source: number; readonly rows: number };

type Guarded = "take" | "put" | "send";
type Guard = "catch" | "finally" | "rejected" | "catch, then finally";

/** Of other workers: a message to one, the next of one, a collective of the group, a method's results, or the first. */
type Asked = "send" | "recv" | "gather" | "answer" | "call" | "first";

const simple: fc.Arbitrary<Simple> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ does: fc.constant("work" as const), rows: fc.integer({ min: 1, max: 20 }) }) },
  { weight: 2, arbitrary: fc.record({ does: fc.constant("take" as const), source: fc.integer({ min: 1, max: 2 }) }) },
  fc.record({
    does: fc.constant("takeBesideWork" as const),
    source: fc.integer({ min: 1, max: 2 }),
    rows: fc.integer({ min: 1, max: 120 }),
    worksFirst: fc.boolean(),
  }),
  fc.record({ does: fc.constant("put" as const), sink: fc.integer({ min: 0, max: 1 }), isAwaited: fc.boolean() }),
  fc.constant<Simple>({ does: "lock" }),
  fc.record({
    does: fc.constant("ask" as const),
    what: fc.constantFrom<Asked>("send", "recv", "gather", "answer", "call", "first"),
    when: fc.constantFrom("at once" as const, "later" as const, "beside work" as const),
  }),
);

const mixed: fc.Arbitrary<Mixed> = fc.oneof(
  fc.record({
    does: fc.constant("both" as const),
    branches: fc.array(fc.array(simple, { minLength: 1, maxLength: 3 }), { minLength: 2, maxLength: 3 }),
  }),
  fc.record({
    does: fc.constant("guard" as const),
    of: fc.constantFrom<Guarded>("take", "put", "send"),
    by: fc.constantFrom<Guard>("catch", "finally", "rejected", "catch, then finally"),
    rows: fc.integer({ min: 1, max: 120 }),
    isOwn: fc.boolean(),
  }),
  fc.record({
    does: fc.constant("race" as const),
    source: fc.integer({ min: 1, max: 2 }),
    afterMs: fc.integer({ min: 1, max: 90 }),
    rows: fc.integer({ min: 1, max: 120 }),
  }),
  fc.record({
    does: fc.constant("pauseBesideTake" as const),
    source: fc.integer({ min: 1, max: 2 }),
    rows: fc.integer({ min: 1, max: 40 }),
  }),
);

const part: fc.Arbitrary<Part> = fc.oneof({ weight: 3, arbitrary: simple }, { weight: 2, arbitrary: mixed });

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

/** The worker whose methods the loops stand for: its engine is watched as in every worker. */
class Computing extends EngineWorker<object, EmulatedEngine> {
  static override readonly module: string = import.meta.url;
  set runs(engine: EmulatedEngine) {
    this.engine = engine;
  }
  get runs(): EmulatedEngine {
    return this.engine;
  }
}

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

/** `toldMs`: what it was told to compute; `pausedMs`: slept beside a take, which counts where that has been answered by then. */
type Observed = { call: ObservedCall; toldMs: number; pausedMs: number; items: number };

async function observe(shape: Loop): Promise<Observed> {
  const clock = new ManualClock();
  const worker = new Computing(contextOf({}, "actor"));
  worker.runs = EmulatedEngine.create(
    {
      logprobs: { unitSeconds: 0.001, baseSeconds: shape.baseMs / 1000 },
      optimStepSeconds: shape.optimStepMs / 1000,
    },
    { clock },
  );
  const meter = new CallMeter({
    now: () => clock.now(),
    idle: () => worker.idle(),
    cpuMs: () => 0,
    queuedMs: () => 0,
  });
  const counts = Array.from({ length: shape.rounds }, (_, i) =>
    i === shape.rounds - 1 ? Math.min(shape.chunk, shape.lastChunk) : shape.chunk,
  );
  let toldMs = 0;
  let pausedMs = 0;
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
    await worker.runs.logprobs({ rows, columns: 1, tokens: new Int32Array(rows) });
  };
  const ownWork = async (ms: number): Promise<void> => {
    toldMs += ms;
    await clock.sleep(ms);
  };
  const act = async (each: Simple, batch: readonly Item[], pending: PromiseLike<unknown>[]): Promise<void> => {
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
  const mix = async (each: Mixed, batch: readonly Item[], pending: PromiseLike<unknown>[]): Promise<void> => {
    if (each.does === "both") {
      const inTurn = async (parts: readonly Simple[]) => {
        for (const one of parts) await act(one, batch, pending);
      };
      await Promise.all(each.branches.map(inTurn));
    } else if (each.does === "guard") {
      const asked = {
        take: () => sources[1]?.take() as Promise<unknown>,
        put: () => sinks[0]?.put(...batch) as Promise<unknown>,
        send: () => others.ask("send") as Promise<unknown>,
      }[each.of]();
      const guards = {
        catch: () => asked.catch(() => {}),
        finally: () => asked.finally(() => {}),
        rejected: () => asked.then(undefined, () => {}),
        "catch, then finally": () => asked.catch(() => {}).finally(() => {}),
      };
      const guarded = guards[each.by]();
      await (each.isOwn ? ownWork : work)(each.rows);
      await guarded;
      await asked;
    } else if (each.does === "race") {
      const take = sources[each.source]?.take();
      await Promise.race([take, clock.sleep(each.afterMs)]);
      await work(each.rows);
      await take;
    } else {
      const twice = async () => {
        await work(each.rows);
        pausedMs++;
        await clock.sleep(1);
        await work(each.rows);
      };
      await Promise.all([sources[each.source]?.take(), twice()]);
    }
  };
  const isMixed = (each: Part): each is Mixed => ["both", "guard", "race", "pauseBesideTake"].includes(each.does);
  const run = async () => {
    const pending: PromiseLike<unknown>[] = [];
    let next = shape.asksAhead ? main.take() : undefined;
    for (;;) {
      const batch = await (next ?? main.take());
      if (!batch) break;
      if (shape.asksAhead) next = main.take();
      for (const each of shape.parts) await (isMixed(each) ? mix(each, batch, pending) : act(each, batch, pending));
    }
    await Promise.all(pending);
    toldMs += shape.optimStepMs;
    await worker.runs.optimStep({ learningRate: 0, scale: 1 });
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
  return { call, toldMs, pausedMs, items };
}

test("a call is busy for all that it computes, however it takes, puts, sends or locks", async () => {
  await fc.assert(
    fc.asyncProperty(loop, async (shape) => {
      const { call, toldMs, pausedMs } = await observe(shape);
      expect(call.busyMs).toBeGreaterThanOrEqual(toldMs - 1e-6);
      expect(call.busyMs).toBeLessThanOrEqual(toldMs + pausedMs + 1e-6);
    }),
    { numRuns: 100 },
  );
});

test("the chunks of a step have all of it, whichever channel they are of", async () => {
  await fc.assert(
    fc.asyncProperty(loop, async (shape) => {
      const { call, toldMs, pausedMs, items } = await observe(shape);
      const channels = Object.fromEntries(
        ["main", "second", "third"].map((name) => [
          name,
          { producers: [], consumers: ["actor"], itemsPerStep: items, bytesPerStep: 0 },
        ]),
      );
      const graph = { components: {}, channels, edges: [], calls: [], cycles: [], batch: items };
      const layouts = new Map([["actor", { devices: 1, ranks: 1, isOnProcessors: false }]]);
      const { samples, onceSeconds } = costsOfStep([call], layouts, graph, new Asks([call]));
      const asksMs = new Asks([call]).ofCalls([call]).reduce((sum, ms) => sum + ms, 0);
      const [sample] = samples;
      const stepMs = (1000 * sample!.seconds - asksMs) * (items / sample!.items);
      // A last chunk that is smaller costs no less for its base than the others, of which it is a part here.
      const perRoundMs = toldMs / shape.rounds;
      expect(stepMs).toBeGreaterThanOrEqual(toldMs - perRoundMs - 1e-6);
      expect(stepMs).toBeLessThanOrEqual(toldMs + pausedMs + perRoundMs + 1e-6);
      if (items === shape.chunk * shape.rounds && pausedMs === 0) expect(stepMs).toBeCloseTo(toldMs, 6);
      expect(1000 * onceSeconds.get("actor")!).toBeCloseTo(shape.optimStepMs, 6); // all else is of a batch
    }),
    { numRuns: 60 },
  );
});
