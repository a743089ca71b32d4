import fc from "fast-check";
import { expect, test } from "vitest";
import { Exchange } from "../../src/runner/exchange.ts";
import type { ChannelEnd, RunnerEffect } from "../../src/runner/runner-messages.ts";

const end = (channel: string, role: "source" | "sink"): ChannelEnd => ({ channel, role, stream: "step-1" });
const from = { worker: "middle", incarnation: 0 };

/** A feeder, a call in the middle that streams from `in` to `out`, and a reader. */
class World {
  readonly answered = new Map<number, RunnerEffect>();
  readonly exchange: Exchange;
  #request = 0;

  constructor(capacity = 1000) {
    this.exchange = new Exchange({
      lockTimeoutMs: Number.POSITIVE_INFINITY,
      emit: (effect) => {
        if (effect.type === "answer" || effect.type === "reject") this.answered.set(effect.request, effect);
      },
      onPolicyFailed: () => {},
      onProgress: () => {},
      onSwap: () => {},
    });
    this.exchange.define("in", 1000, "fifo");
    this.exchange.define("out", capacity, "fifo");
    this.exchange.openOwn("feed", end("in", "sink"));
    this.exchange.openCall({
      call: "1/0",
      worker: "middle",
      sequence: 1,
      ends: [end("in", "source"), end("out", "sink")],
    });
    this.exchange.openCall({ call: "2/0", worker: "reader", sequence: 2, ends: [end("out", "source")] });
  }

  put(call: string, channel: string, ...payloads: unknown[]): number {
    const items = payloads.map((payload) => ({ payload, sizeBytes: 1 }));
    this.exchange.put({ type: "put", request: ++this.#request, call, channel, items });
    return this.#request;
  }
  take(call: string, channel: string, maxItems: number, streams = false): { delivery: number; payload: unknown }[] {
    const request = ++this.#request;
    const common = { type: "take", request, call, channel, maxItems, minItems: 1 } as const;
    this.exchange.take({ ...common, acknowledge: !streams, streams });
    const effect = this.answered.get(request);
    return effect?.type === "answer" && effect.answer.type === "batch" ? [...effect.answer.items] : [];
  }
  commit(delivery: number, ...payloads: unknown[]): number {
    const items = payloads.map((payload) => ({ payload, sizeBytes: 1 }));
    const outputs = payloads.length > 0 ? { channel: "out", items } : undefined;
    const request = ++this.#request;
    this.exchange.commit({
      type: "commit",
      request,
      from,
      call: "1/0",
      channel: "in",
      deliveries: [delivery],
      outputs,
    });
    return request;
  }
}

test("C6: what was made of an item is visible at its commit, whatever else the call holds, and takes", () => {
  const world = new World();
  world.put("feed", "in", "a", "b", "c");
  const [a, b] = world.take("1/0", "in", 2, true);
  world.commit(b?.delivery as number, "b1", "b2");
  expect(world.take("2/0", "out", 9).map(({ payload }) => payload)).toEqual(["b1", "b2"]);
  world.put("1/0", "out", "beside"); // of whichever item: it waits for all of them
  expect(world.take("1/0", "in", 1, true).map(({ payload }) => payload)).toEqual(["c"]);
  expect(world.exchange.untaken("step-1")).toEqual([]);
  world.exchange.startOver([{ call: "1/0", worker: "middle" }]);
  expect(world.take("1/0", "in", 9, true).map(({ payload }) => payload)).toEqual(["a", "c"]);
  expect(world.answered.get(world.commit(b?.delivery as number))).toMatchObject({
    type: "reject",
    error: { code: "call.cancelled" },
  });
  world.commit(a?.delivery as number, "a1");
  expect(world.exchange.untaken("step-1")).toEqual([{ channel: "out", items: 1 }]);
});

test("C3: a commit without room is done all the same, and is answered when there is room", () => {
  const world = new World(1);
  world.put("feed", "in", "a", "b");
  const [a, b] = world.take("1/0", "in", 2, true);
  const [first, second] = [world.commit(a?.delivery as number, "a1"), world.commit(b?.delivery as number, "b1")];
  expect([world.answered.has(first), world.answered.has(second)]).toEqual([true, false]);
  world.exchange.startOver([{ call: "1/0", worker: "middle" }]);
  expect(world.take("1/0", "in", 9, true)).toEqual([]);
  const seen = [world.take("2/0", "out", 1), world.take("2/0", "out", 1)].flat();
  expect(seen.map(({ payload }) => payload)).toEqual(["a1", "b1"]);
});

test("C1, C6: however commits and deaths come, each item yields its output once, in the end", () => {
  fc.assert(
    fc.property(
      fc.nat(12),
      fc.integer({ min: 1, max: 4 }),
      fc.array(fc.record({ what: fc.constantFrom("take", "commit", "commit", "die", "read"), at: fc.nat(9) }), {
        maxLength: 60,
      }),
      (numItems, capacity, script) => {
        const world = new World(capacity);
        const items = Array.from({ length: numItems }, (_, i) => i);
        if (numItems > 0) world.put("feed", "in", ...items);
        const held: { delivery: number; payload: unknown }[] = [];
        const read: unknown[] = [];
        let numCommitted = 0;
        const act = (what: string, at: number) => {
          if (what === "take" && held.length < 5) {
            if (world.exchange.untaken("step-1").some(({ channel }) => channel === "in"))
              held.push(...world.take("1/0", "in", 1 + (at % 3), true));
          } else if (what === "commit" && held.length > 0) {
            const [item] = held.splice(at % held.length, 1);
            world.commit(item?.delivery as number, item?.payload);
            numCommitted++;
          } else if (what === "die") {
            held.length = 0;
            world.exchange.startOver([{ call: "1/0", worker: "middle" }]);
          } else if (what === "read") {
            if (numCommitted > read.length) read.push(...world.take("2/0", "out", 3).map(({ payload }) => payload));
          }
        };
        for (const { what, at } of script) act(what, at);
        for (let i = 0; i < 40 * (numItems + 1) && read.length < numItems; i++)
          act(["take", "commit", "read"][i % 3] as string, i);
        expect(read.toSorted((a, b) => Number(a) - Number(b))).toEqual(items);
        expect(world.exchange.untaken("step-1")).toEqual([]);
      },
    ),
  );
});

test("C3: a commit into a full channel gives whoever waits for all of the stream its share of what is there", () => {
  const world = new World(2);
  world.put("feed", "in", "a", "b", "c");
  world.exchange.closeCall("feed", { ok: true });
  const taken = world.take("1/0", "in", 3, true);
  const all = 1000; // a request of its own: it wants whatever there is until the stream ends
  world.exchange.take({ type: "take", request: all, call: "2/0", channel: "out", minItems: 1, acknowledge: false });
  const commits = taken.map(({ delivery, payload }) => world.commit(delivery, `${payload}1`));
  expect(world.answered.get(all)).toMatchObject({ type: "answer", answer: { type: "batch" } });
  expect(commits.filter((request) => world.answered.has(request)).length).toBeGreaterThanOrEqual(2);
});
