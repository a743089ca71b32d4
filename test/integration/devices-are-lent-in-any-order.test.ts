/**
 * A worker's side of the device lock and the runner's exchange, with messages between them that take their time, in order but
 * late: an engine puts what it completes, several puts at once, into a channel of little room, whose consumer needs the same
 * device. Whatever overtakes what, everything passes.
 */
import fc from "fast-check";
import { expect, test } from "vitest";
import { Exchange } from "../../packages/core/src/runner/exchange.ts";
import type { Answer } from "../../packages/core/src/runner/runner-messages.ts";
import { runInCall } from "../../packages/runtime/src/author/call/call-context.ts";
import { DeviceLock } from "../../packages/runtime/src/author/device-lock.ts";

const [producing, consuming, feeding] = ["1/0", "2/0", "runner:prompts:1"];
const stream = "step-1";
const from = { worker: "producer", incarnation: 0 };

type Settle = { resolve: (answer: Answer) => void; reject: (error: unknown) => void };

/** `order`: which of what may happen next does, as often as it has numbers; afterwards always the first. */
async function play(
  order: readonly number[],
  shape: { items: number; atOnce: number; capacity: number; chunk: number; isAhead: boolean; isFedLate: boolean },
) {
  const settled = new Map<number, Settle>();
  const toRunner: (() => void)[] = [];
  const toWorker: (() => void)[] = [];
  const swaps: (() => void)[] = [];
  /** by prompt that the engine is at, what its completion resolves */
  const decoding = new Map<number, () => void>();
  let lastRequest = 0;
  const exchange = new Exchange({
    lockTimeoutMs: Number.POSITIVE_INFINITY,
    onPolicyFailed: (error) => {
      throw error;
    },
    onProgress: () => {},
    onSwap: (worker, swap) =>
      swaps.push(() => {
        if (swap === "onload") return exchange.onloaded(worker, { memoryBytes: 60 });
        if (worker === "producer") expect(decoding.size, "what computes is not offloaded").toBe(0);
        exchange.offloaded(worker);
      }),
    emit: (effect) => {
      if (effect.type !== "answer" && effect.type !== "reject") return;
      const { resolve, reject } = settled.get(effect.request) as Settle;
      settled.delete(effect.request);
      if (effect.type === "answer") resolve(effect.answer);
      else reject(effect.error);
    },
  });
  exchange.addDevice("cpu:0", 100);
  for (const worker of ["producer", "consumer"]) {
    exchange.addWorker(worker, ["cpu:0"]);
    exchange.reportMemory(worker, 60);
  }
  exchange.define("prompts", 1000, "fifo");
  exchange.define("groups", shape.capacity, "fifo");
  exchange.openOwn(feeding, { channel: "prompts", role: "sink", stream });
  const groups = (role: "source" | "sink") => ({ channel: "groups", role, stream }) as const;
  const prompts = { channel: "prompts", role: "source", stream } as const;
  exchange.openCall({ call: producing, worker: "producer", sequence: 1, ends: [prompts, groups("sink")] });
  exchange.openCall({ call: consuming, worker: "consumer", sequence: 2, ends: [groups("source")] });

  const here = (start: (request: number) => void): Promise<Answer> => {
    const request = ++lastRequest;
    return new Promise((resolve, reject) => {
      settled.set(request, { resolve, reject });
      start(request);
    });
  };
  /** The way to the runner and the answer's way back. */
  const far = (start: (request: number) => void): Promise<Answer> =>
    new Promise((resolve, reject) => {
      toRunner.push(() => {
        here(start).then(
          (answer) => toWorker.push(() => resolve(answer)),
          (error) => toWorker.push(() => reject(error)),
        );
      });
    });

  const feeds = Array.from({ length: shape.items }, (_, payload) => () => {
    const put = { type: "put", call: feeding, channel: "prompts", items: [{ payload, sizeBytes: 1 }] } as const;
    void here((request) => exchange.put({ ...put, request }));
    if (payload === shape.items - 1) exchange.closeCall(feeding, { ok: true });
  });
  if (!shape.isFedLate) for (const feed of feeds.splice(0)) feed();

  let idle: { promise: Promise<void>; resolve: () => void } | undefined;
  const decode = (prompt: number) =>
    new Promise<void>((resolve) => {
      const held = exchange.lockSnapshot().holds.find(({ worker }) => worker === "producer");
      expect(held, "what computes has its devices").toMatchObject({ lent: false });
      if (idle === undefined) {
        let end = () => {};
        idle = { promise: new Promise<void>((over) => (end = over)), resolve: () => end() };
      }
      decoding.set(prompt, resolve);
    });
  const complete = (prompt: number) => {
    decoding.get(prompt)?.();
    decoding.delete(prompt);
    if (decoding.size > 0) return;
    idle?.resolve();
    idle = undefined;
  };
  const peer = {
    request: (verb: string, body: { token?: number }) =>
      far((request) => {
        if (verb === "lock.acquire") exchange.acquire(request, producing, "producer");
        else {
          exchange.release(producing, "producer", body.token as number);
          settled.get(request)?.resolve({ type: "done" } as Answer);
        }
      }),
    notify: (_verb: string, { numAnswered }: { numAnswered: number }) =>
      void toRunner.push(() => exchange.lend(producing, "producer", numAnswered)),
  };
  const tracer = { span: () => ({ [Symbol.dispose]: () => {} }) };
  const devices = new DeviceLock(["cpu:0"], peer as never, tracer as never, () => idle?.promise);

  const context = { call: producing, method: "generate", step: 1, signal: new AbortController().signal, timers: {} };
  const produced = runInCall(context, async () => {
    const locking = devices.lock();
    if (!shape.isAhead) await locking;
    const delivering: Promise<void>[] = [];
    const deliver = async (prompt: number, delivery: number) => {
      await locking;
      await decode(prompt);
      await devices.waiting(
        producing,
        "put",
        (terms) =>
          far((request) =>
            exchange.commit({
              ...{
                type: "commit",
                request,
                from,
                call: producing,
                channel: "prompts",
                deliveries: [delivery],
                ...terms,
              },
              outputs: { channel: "groups", items: [{ payload: prompt, sizeBytes: 1 }] },
            }),
          ),
        { committed: 1 },
      );
    };
    for (;;) {
      const answer = await devices.waiting(
        producing,
        "take",
        (terms) =>
          far((request) =>
            exchange.take({
              ...{ type: "take", request, call: producing, channel: "prompts", maxItems: shape.atOnce, minItems: 1 },
              ...{ acknowledge: false, streams: true, ...terms },
            }),
          ).then((answer) => (answer.type === "batch" ? answer : null)), // as the channel's client says the end
        { given: (answer) => answer?.items.length ?? 0 },
      );
      if (answer === null) break;
      const given = answer.items.map(({ payload, delivery }) => deliver(payload as number, delivery));
      if (shape.isAhead) delivering.push(...given);
      else await Promise.all(given);
    }
    await Promise.all(delivering);
    await (await locking)[Symbol.asyncDispose]();
    exchange.closeCall(producing, { ok: true });
  });

  const got: unknown[] = [];
  const consumed = (async () => {
    for (;;) {
      const answer = await here((request) =>
        exchange.take({
          ...{ type: "take", request, call: consuming, channel: "groups", maxItems: shape.chunk, minItems: 1 },
          acknowledge: true,
        }),
      );
      if (answer.type !== "batch") break;
      const grant = await here((request) => exchange.acquire(request, consuming, "consumer"));
      got.push(...answer.items.map(({ payload }) => payload));
      if (grant.type === "token") exchange.release(consuming, "consumer", grant.token);
    }
    exchange.closeCall(consuming, { ok: true });
  })();

  for (let turn = 0; ; turn++) {
    for (let i = 0; i < 4; i++) await new Promise<void>((resolve) => setImmediate(resolve));
    const next = [
      ...[toRunner, toWorker, swaps, feeds].filter((queue) => queue.length > 0).map((queue) => () => queue.shift()?.()),
      ...[...decoding.keys()].map((prompt) => () => complete(prompt)),
    ];
    if (next.length === 0) break;
    next[(order[turn] ?? 0) % next.length]?.();
  }
  expect(got.toSorted((a, b) => Number(a) - Number(b))).toEqual(Array.from({ length: shape.items }, (_, i) => i));
  await Promise.all([produced, consumed]);
}

test("EX3: a call with many puts at once lends its devices while any of them waits, whatever is answered meanwhile", async () => {
  const shape = fc.record({
    items: fc.integer({ min: 1, max: 12 }),
    atOnce: fc.integer({ min: 1, max: 6 }),
    capacity: fc.integer({ min: 1, max: 4 }),
    chunk: fc.integer({ min: 1, max: 3 }),
    // it takes while it waits for its devices
    isAhead: fc.boolean(),
    isFedLate: fc.boolean(),
  });
  await fc.assert(fc.asyncProperty(fc.array(fc.nat({ max: 60 }), { maxLength: 80 }), shape, play), { numRuns: 150 });
}, 120_000);
