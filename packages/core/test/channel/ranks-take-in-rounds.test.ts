import fc from "fast-check";
import { expect, test } from "vitest";
import type { RunnerEffect } from "../../src/runner/runner-messages.ts";
import { channelWaits } from "../../src/standstill.ts";
import { RunnerWorld } from "../runner/runner-world.ts";

type Got = { readonly batches: number[][]; ended: boolean; failed: string | undefined };

const stream = "step-1";

/** A trainer whose ranks take a stream in rounds, and keep what they have until their call ends. */
class Gang {
  readonly runner = new RunnerWorld();
  readonly ranks: readonly number[];
  got: Got[];
  readonly weights: number[] = [];
  #request = 0;
  readonly #asked = new Map<number, number>();

  constructor(numRanks: number, { capacity = 1000, restart = "group" as "group" | "rank" } = {}) {
    this.runner.feed({ type: "define-channel", name: "in", capacity, pick: "fifo" });
    this.runner.component(numRanks, { restart });
    this.ranks = Array.from({ length: numRanks }, (_, rank) => rank);
    this.got = this.ranks.map(() => ({ batches: [], ended: false, failed: undefined }));
    for (const rank of this.ranks) this.runner.up(`actor/${rank}`);
    this.runner.feed({ type: "open", call: "own", end: { channel: "in", role: "sink", stream } });
    const ends = [{ channel: "in", role: "source", stream } as const];
    this.runner.feed({ type: "call", sequence: 1, component: "actor", method: "work", ranks: this.ranks, ends });
  }

  put(...weights: readonly number[]): void {
    const items = weights.map((weight) => ({ payload: this.weights.push(weight) - 1, sizeBytes: 1, weight }));
    this.#note(this.runner.feed({ type: "put", request: ++this.#request, call: "own", channel: "in", items }));
  }

  endOfStream(): void {
    this.#note(this.runner.feed({ type: "close", call: "own", outcome: { ok: true } }));
  }

  take(rank: number, maxItems?: number): void {
    const request = ++this.#request;
    this.#asked.set(request, rank);
    const ask = { request, from: this.runner.id(`actor/${rank}`), call: `1/${rank}`, channel: "in" } as const;
    this.#note(this.runner.feed({ type: "take", ...ask, acknowledge: false, inGang: true, maxItems }));
  }

  returned(rank: number): void {
    this.#note(this.runner.returned(`1/${rank}`));
  }

  /** All ranks start again with it; what waited for an answer was of processes that are gone. */
  die(rank: number): void {
    this.runner.die(`actor/${rank}`);
    this.#asked.clear();
    this.got = this.ranks.map(() => ({ batches: [], ended: false, failed: undefined }));
    for (const each of this.ranks) this.runner.up(`actor/${each}`);
  }

  waits(rank: number): boolean {
    return [...this.#asked.values()].includes(rank);
  }

  /** Ranks take by turns until the stream ends for all of them. */
  drain(maxItems?: number): void {
    for (let turn = 0; this.got.some(({ ended }) => !ended); turn++) {
      if (turn > 1000) throw new Error("the ranks wait for ever");
      for (const rank of this.ranks) {
        if (!this.waits(rank) && !(this.got[rank] as Got).ended) this.take(rank, maxItems);
      }
    }
  }

  weightsOf(round: number): number[] {
    return this.got.map(({ batches }) => (batches[round] ?? []).reduce((sum, at) => sum + (this.weights[at] ?? 0), 0));
  }

  #note(effects: readonly RunnerEffect[]): void {
    for (const effect of effects) {
      if (effect.type !== "answer" && effect.type !== "reject") continue;
      const rank = this.#asked.get(effect.request);
      if (rank === undefined) continue;
      this.#asked.delete(effect.request);
      const got = this.got[rank] as Got;
      if (effect.type === "reject") got.failed = (effect.error as Error).message;
      else if (effect.answer.type === "end-of-stream") got.ended = true;
      else if (effect.answer.type === "batch")
        got.batches.push(effect.answer.items.map(({ payload }) => payload as number));
    }
  }
}

const drawn = fc.record({
  puts: fc.array(fc.array(fc.integer({ min: 0, max: 50 }), { minLength: 1, maxLength: 8 }), {
    minLength: 1,
    maxLength: 5,
  }),
  numRanks: fc.integer({ min: 1, max: 5 }),
  maxItems: fc.option(fc.integer({ min: 1, max: 4 }), { nil: undefined }),
  capacity: fc.integer({ min: 1, max: 40 }),
  /** which rank dies after so many takes, if any */
  death: fc.option(fc.record({ rank: fc.nat(4), after: fc.integer({ min: 0, max: 20 }) }), { nil: undefined }),
  order: fc.array(fc.nat(4), { maxLength: 20 }),
});

test("C8: all ranks get equally many batches, each item comes to one of them, and a round's parts are of like weight, whoever dies", () => {
  fc.assert(
    fc.property(drawn, ({ puts, numRanks, maxItems, capacity, death, order }) => {
      const gang = new Gang(numRanks, { capacity });
      const [first, ...rest] = puts;
      gang.put(...(first as number[]));
      for (const [turn, drawnRank] of order.entries()) {
        const rank = drawnRank % numRanks;
        if (death?.after === turn) gang.die(death.rank % numRanks);
        if (!gang.waits(rank)) gang.take(rank, maxItems);
        const next = turn % 3 === 2 ? rest.shift() : undefined;
        if (next) gang.put(...next);
        const counts = gang.got.map(({ batches }) => batches.length);
        expect(Math.max(...counts) - Math.min(...counts)).toBe(0);
      }
      for (const put of rest) gang.put(...put);
      gang.endOfStream();
      gang.drain(maxItems);
      const { got, weights } = gang;
      const all = got.flatMap(({ batches }) => batches.flat());
      expect(all.toSorted((a, b) => a - b)).toEqual([...weights.keys()]);
      const numRounds = got[0]?.batches.length as number;
      for (const { batches, ended } of got) {
        expect(batches).toHaveLength(numRounds);
        expect(ended).toBe(true);
      }
      for (let round = 0; round < numRounds; round++) {
        const items = got.flatMap(({ batches }) => batches[round] as number[]);
        expect(items.length).toBeGreaterThan(0);
        if (maxItems !== undefined) expect(items.length).toBeLessThanOrEqual(maxItems * numRanks);
        const loads = gang.weightsOf(round);
        const heaviest = Math.max(...items.map((item) => weights[item] as number));
        expect(Math.max(...loads) - Math.min(...loads)).toBeLessThanOrEqual(heaviest);
      }
      // C1: acknowledged once, with the calls.
      for (const rank of gang.ranks) gang.returned(rank);
      expect(gang.runner.state.channelSnapshots().map(({ usedItems }) => usedItems)).toEqual([0]);
    }),
    { numRuns: 400 },
  );
});

test("C8: nobody gets anything before all ranks of the gang ask, and then as much as all of them want, or what there is at the end", () => {
  const gang = new Gang(2);
  gang.put(5, 1, 1);
  gang.take(0, 2);
  expect(gang.waits(0)).toBe(true);
  gang.take(1, 2);
  expect(gang.waits(0) && gang.waits(1)).toBe(true); // four are wanted
  gang.put(3, 9);
  expect(gang.got.map(({ batches }) => batches)).toEqual([[[0]], [[1, 2, 3]]]);
  gang.take(0, 2);
  gang.take(1, 2);
  gang.endOfStream();
  expect(gang.got.map(({ batches }) => batches[1])).toEqual([[4], []]);
});

test("C8: ranks may ask for parts of a round of different sizes, and for none", () => {
  const gang = new Gang(3);
  gang.put(1, 1, 1, 1);
  for (const [rank, items] of [2, 1, 0].entries()) gang.take(rank, items);
  expect(gang.got.map(({ batches }) => batches)).toEqual([[[0]], [[1]], [[2]]]);
});

test("C8: which rank gets what does not depend on who asks first", () => {
  const dealtAfter = (order: readonly number[]) => {
    const gang = new Gang(3);
    gang.put(5, 9, 7);
    for (const rank of order) gang.take(rank, 1);
    return gang.got.map(({ batches }) => batches);
  };
  expect(dealtAfter([2, 0, 1])).toEqual([[[1]], [[2]], [[0]]]);
  expect(dealtAfter([1, 2, 0])).toEqual(dealtAfter([0, 1, 2]));
});

test("C8: a rank that has replied is waited for no more", () => {
  const gang = new Gang(2);
  gang.put(1, 1);
  gang.take(0, 1);
  gang.returned(1);
  expect(gang.got[0]?.batches).toEqual([[0]]);
});

test("C8: what a round lacks passes into a full stream, so that its parts are of like weight all the same", () => {
  const gang = new Gang(2, { capacity: 1 });
  gang.take(0, 2);
  gang.put(4, 4);
  gang.take(1, 2);
  gang.put(8, 1);
  expect(gang.got.map(({ batches }) => batches)).toEqual([[[2, 3]], [[0, 1]]]);
});

test("C8: of a full stream all is what it has, since nothing more can come", () => {
  const gang = new Gang(2, { capacity: 3 });
  gang.take(0);
  gang.put(4, 4, 8, 1);
  expect(gang.got[0]?.batches).toEqual([]);
  gang.take(1);
  expect(gang.got.map(({ batches }) => batches)).toEqual([[[2]], [[0, 1]]]);
  const brim = new Gang(2, { capacity: 2 });
  for (const rank of brim.ranks) brim.take(rank);
  brim.put(4, 4);
  expect(brim.got.map(({ batches }) => batches)).toEqual([[], []]); // more may come, until one has to wait
  brim.put(4);
  expect(brim.got.map(({ batches }) => batches)).toEqual([[[0]], [[1]]]);
});

test("ranks that start again one by one cannot take in rounds, and are told how they could", () => {
  const gang = new Gang(2, { restart: "rank" });
  gang.take(0);
  expect(gang.got[0]?.failed).toContain(`'actor/0' takes from channel 'in' with 'gang'`);
  expect(gang.got[0]?.failed).toContain(`static restart = "group"`);
});

test("S3: a rank that waits for its fellow ranks says so, and not that nobody puts", () => {
  const gang = new Gang(3);
  gang.put(1);
  gang.endOfStream();
  gang.take(1);
  const waits = () => channelWaits(gang.runner.state.channelSnapshots());
  const on = { on: "in", kind: "data" } as const;
  expect(waits()).toEqual([
    { waiter: "actor/1", waitsFor: "actor/0", ...on },
    { waiter: "actor/1", waitsFor: "actor/2", ...on },
  ]);
  gang.returned(0);
  expect(waits()).toEqual([{ waiter: "actor/1", waitsFor: "actor/2", ...on }]);
  gang.take(2);
  expect(waits()).toEqual([]);
});
