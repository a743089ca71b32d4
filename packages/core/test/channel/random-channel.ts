/**
 * Drives a channel with arbitrary interleavings of everything that calls can do, and judges every effect with a ledger
 * of its own, which knows items and holders but neither queues nor credit.
 */
import { expect } from "vitest";
import type { ChannelEffect, ItemView, TakeInput } from "../../src/channel/channel-messages.ts";
import { type ChannelOptions, ChannelState } from "../../src/channel/channel-state.ts";

export type Step = { readonly op: number; readonly a: number; readonly b: number; readonly c: number };

type LedgerItem = {
  readonly id: number;
  readonly stream: number;
  readonly producer: string;
  readonly key: string | undefined;
  readonly weight: number;
  readonly bytes: number;
  /** the items that this output was made from */
  readonly inputs: readonly number[];
  state: "staged" | "visible" | "inFlight" | "acked" | "dropped";
  holder: string | undefined;
  delivery: number | undefined;
  /** position among its producer's visible items */
  rank: number;
};

type Call = {
  readonly id: string;
  worker: string;
  readonly source: number | undefined;
  readonly sink: number | undefined;
  isOpen: boolean;
  lost: boolean;
  takes: TakeInput[];
  numDeaths: number;
};

export type ScenarioOptions = {
  readonly channel: ChannelOptions;
  readonly producers: number;
  readonly consumers: number;
  readonly transformers: number;
  readonly numKeys: number;
};

const numStreams = 2;

/** `expect` costs too much for what is asked a million times. */
function must(holds: boolean, invariant: string): void {
  if (!holds) throw new Error(invariant);
}

export class RandomChannel {
  readonly channel: ChannelState;
  readonly items: LedgerItem[] = [];
  readonly calls = new Map<string, Call>();
  readonly openPuts = new Map<number, { readonly call: Call; readonly items: LedgerItem[] }>();
  readonly failed = new Map<number, Error>();
  /** ids of items that `finished` has named */
  readonly finished = new Set<number>();
  readonly #options: ScenarioOptions;
  #lastId = 0;
  #rank = 0;

  constructor(options: ScenarioOptions) {
    this.#options = options;
    this.channel = new ChannelState(options.channel);
    for (let i = 0; i < options.producers; i++) this.#open(`producer/${i}`, undefined, i % numStreams);
    for (let i = 0; i < options.transformers; i++) this.#open(`transformer/${i}`, 0, 1);
    for (let i = 0; i < options.consumers; i++) this.#open(`consumer/${i}`, i % numStreams, undefined);
  }

  #open(id: string, source: number | undefined, sink: number | undefined): void {
    this.calls.set(id, { id, worker: `${id}@0`, source, sink, isOpen: true, lost: false, takes: [], numDeaths: 0 });
    if (source !== undefined) this.channel.open({ call: id, worker: `${id}@0`, role: "source", stream: source });
    if (sink !== undefined) this.channel.open({ call: id, worker: `${id}@0`, role: "sink", stream: sink });
  }

  step({ op, a, b, c }: Step): void {
    const all = [...this.calls.values()];
    const sinks = all.filter((call) => call.sink !== undefined && call.id.startsWith("producer"));
    const sources = all.filter((call) => call.source !== undefined);
    const call = all[a % all.length] as Call;
    if (op < 30) {
      const from = sinks[a % sinks.length];
      if (from) this.put(from, 1 + (b % 6), false, c, []);
    } else if (op < 60) {
      const to = sources[a % sources.length];
      if (to) this.take(to, b, c);
    } else if (op < 85) {
      const to = sources[a % sources.length];
      if (to) this.finish(to, b % 3 === 0 ? c : undefined);
    } else if (op < 92) this.die(call);
    else if (op < 96) this.cancel(call);
    else if (op < 98 && c % 4 === 0) this.close(call, { ok: true });
    else if (op === 99 && c % 8 === 0) this.close(call, { ok: false, error: new Error(`failure of ${call.id}`) });
  }

  put(call: Call, numItems: number, staged: boolean, shape: number, inputs: readonly number[]): void {
    const put = ++this.#lastId;
    const items = Array.from({ length: numItems }, (_, i): LedgerItem => {
      const at = shape + i * 7;
      const { numKeys } = this.#options;
      const id = this.items.length + i;
      return {
        id,
        stream: call.sink as number,
        producer: call.id,
        key: numKeys > 0 && at % 3 > 0 ? `key-${at % numKeys}` : undefined,
        weight: 1 + (at % 5),
        bytes: 1 + (at % 9),
        inputs,
        state: staged ? "staged" : "visible",
        holder: undefined,
        delivery: undefined,
        rank: staged ? 0 : ++this.#rank,
      };
    });
    const isAccepted = call.isOpen && !call.lost && !this.failed.has(call.sink as number);
    this.items.push(...items);
    this.openPuts.set(put, { call, items });
    const before = this.channel.snapshot();
    const effects = this.channel.put({
      call: call.id,
      put,
      staged,
      nowMs: 0,
      items: items.map((item) => ({
        payload: item.id,
        sizeBytes: item.bytes,
        key: item.key,
        weight: item.weight,
        priority: item.weight,
        segment: String(item.id),
      })),
    });
    const answer = effects.find(
      (effect) => (effect.type === "put-accepted" || effect.type === "put-refused") && effect.put === put,
    );
    if (!isAccepted) expect(answer?.type).toBe("put-refused");
    this.#apply(effects);
    // C3: more than the capacity enters only for a take that waits, or staged while nothing is queued.
    const used = before.credit.find((each) => each.stream === call.sink)?.usedItems ?? 0;
    if (answer?.type === "put-accepted" && used > 0 && used + numItems > this.#options.channel.capacity.items) {
      const taken = effects.some((effect) => effect.type === "deliver");
      const waits = [...this.calls.values()].some((each) => each.source === call.sink && each.takes.length > 0);
      const queued = before.streams.find((each) => each.stream === call.sink)?.queuedItems ?? 0;
      expect(taken || waits || (staged && queued === 0), "C3: a put passed a full channel").toBe(true);
    }
    this.check();
  }

  take(call: Call, b: number, c: number): void {
    const items = b % 4 === 0 ? undefined : 1 + (b % 7);
    const weight = c % 4 === 0 ? 1 + (c % 11) : undefined;
    const min = b % 5 === 0 ? 1 + (c % 6) : undefined;
    const key = this.#options.numKeys > 0 && c % 9 === 0 ? `key-${b % this.#options.numKeys}` : undefined;
    const take: TakeInput = { call: call.id, take: ++this.#lastId, max: { items, weight }, min, key, nowMs: 0 };
    if (call.isOpen && !call.lost) call.takes.push(take);
    const effects = this.channel.take(take);
    if (!call.isOpen || call.lost) expect(effects.map((effect) => effect.type)).toEqual(["fail"]);
    else this.#apply(effects);
    this.check();
  }

  /** Acknowledges; a transformer first stages one output for each input and commits in the same turn (C6). */
  finish(call: Call, some: number | undefined): void {
    if (!call.isOpen || call.lost) return;
    const held = this.items.filter((item) => item.holder === call.id);
    if (call.sink !== undefined) {
      if (held.length > 0 && ![...this.openPuts.values()].some((put) => put.call === call)) {
        const inputs = held.map((item) => item.id);
        for (const input of inputs) {
          if (!this.items.some((item) => item.inputs.includes(input) && item.state !== "dropped"))
            this.put(call, 1, true, input, [input]);
        }
        if ([...this.openPuts.values()].some((put) => put.call === call)) return;
      } else if (held.length > 0) return;
    }
    const chosen = call.sink === undefined && some !== undefined ? held.filter((_, i) => (some + i) % 2 === 0) : held;
    for (const item of chosen) {
      item.state = "acked";
      item.holder = undefined;
    }
    this.#commitLedger(call);
    const isPartial = chosen.length < held.length;
    const acked = this.channel.ack({
      call: call.id,
      deliveries: isPartial ? chosen.map((item) => item.delivery as number) : undefined,
    });
    const committed = this.channel.commit({ call: call.id });
    this.#apply([...acked, ...committed]);
    this.check();
  }

  die(call: Call): void {
    if (!call.isOpen) return;
    this.#undoLedger(call);
    if (call.lost) {
      call.worker = `${call.id}@${call.numDeaths}`;
      call.lost = false;
      this.channel.retry({ call: call.id, worker: call.worker });
    } else {
      call.lost = true;
      call.numDeaths += 1;
      this.#apply(this.channel.workerDied({ worker: call.worker }));
      const held = this.items.filter((item) => item.delivery !== undefined).map((item) => item.delivery as number);
      expect(this.channel.ack({ call: call.id, deliveries: held }).every((effect) => effect.type === "stale-ack")).toBe(
        true,
      );
    }
    this.check();
  }

  cancel(call: Call): void {
    const take = call.takes.shift();
    if (take) this.#apply(this.channel.cancel({ call: call.id, request: take.take }));
    this.check();
  }

  close(call: Call, outcome: { ok: true } | { ok: false; error: Error }): void {
    if (!call.isOpen) return;
    call.isOpen = false;
    call.takes = [];
    if (outcome.ok) {
      this.#giveBackLedger(call);
      this.#commitLedger(call);
    } else {
      this.#undoLedger(call);
      if (call.sink !== undefined && !this.failed.has(call.sink)) this.failed.set(call.sink, outcome.error);
    }
    for (const item of this.items) {
      if (this.failed.has(item.stream) && item.state === "visible") item.state = "dropped";
    }
    this.#apply(this.channel.close({ call: call.id, outcome }));
    this.check();
  }

  #commitLedger(call: Call): void {
    for (const item of this.items) {
      if (item.producer !== call.id || item.state !== "staged") continue;
      item.state = this.failed.has(item.stream) ? "dropped" : "visible";
      item.rank = ++this.#rank;
    }
  }

  #giveBackLedger(call: Call): void {
    for (const item of this.items) {
      if (item.holder !== call.id) continue;
      item.holder = undefined;
      item.state = this.failed.has(item.stream) ? "dropped" : "visible";
    }
  }

  #undoLedger(call: Call): void {
    this.#giveBackLedger(call);
    call.takes = [];
    for (const item of this.items) if (item.producer === call.id && item.state === "staged") item.state = "dropped";
    // What a dead call's waiting puts had not yet brought in vanishes with it.
    const waiting = new Map(
      this.channel.snapshot().streams.flatMap((s) => s.waitingPuts.map((put) => [put.put, put.remainingItems])),
    );
    for (const [put, { call: owner, items }] of this.openPuts) {
      if (owner !== call) continue;
      const remaining = waiting.get(put) ?? 0;
      for (const item of items.slice(items.length - remaining)) if (item.state !== "acked") item.state = "dropped";
      this.openPuts.delete(put);
    }
  }

  #apply(effects: readonly ChannelEffect[]): void {
    for (const effect of effects) {
      if (effect.type === "put-accepted") expect(this.openPuts.delete(effect.put as number)).toBe(true);
      if (effect.type === "put-refused") {
        const put = this.openPuts.get(effect.put as number);
        this.openPuts.delete(effect.put as number);
        for (const item of put?.items ?? [])
          if (item.state === "visible" || item.state === "staged") item.state = "dropped";
      }
      if (effect.type === "finished") {
        for (const id of effect.segments.map(Number)) {
          must(!this.finished.has(id), "C7: a kept item is finished once");
          this.finished.add(id);
        }
      }
      if (effect.type === "stale-ack")
        throw new Error(`nobody acknowledged what is not theirs: ${JSON.stringify(effect)}`);
      if (effect.type !== "deliver" && effect.type !== "end" && effect.type !== "fail") continue;
      const call = this.calls.get(effect.call) as Call;
      const take = call.takes.find((each) => each.take === effect.take) as TakeInput;
      expect(take, "an answer belongs to a waiting take").toBeDefined();
      if (effect.type === "deliver") {
        expect(effect.worker).toBe(call.worker);
        this.#judgeDelivery(call, take, effect.deliveries);
      } else if (effect.type === "end") {
        expect(this.#isSealed(call.source as number), "C4: a stream ends after its producers").toBe(true);
        expect(this.#available(call, take).length, "C4: a stream ends when it is empty").toBe(0);
      } else
        expect(effect.error.cause, "C4: the first producer's error is the cause").toBe(
          this.failed.get(call.source as number),
        );
      call.takes = call.takes.filter((each) => each !== take);
    }
  }

  #judgeDelivery(call: Call, take: TakeInput, deliveries: readonly ItemView[]): void {
    expect(deliveries.length).toBeGreaterThan(0);
    expect(deliveries.length).toBeLessThanOrEqual(take.max?.items ?? Number.POSITIVE_INFINITY);
    const weight = deliveries.reduce((sum, item) => sum + item.weight, 0);
    if (deliveries.length > 1)
      expect(weight, "C2: batch weight").toBeLessThanOrEqual(take.max?.weight ?? Number.POSITIVE_INFINITY);
    const min = Math.min(take.min ?? 1, take.max?.items ?? Number.POSITIVE_INFINITY);
    if (deliveries.length < min) {
      expect(
        this.#isSealed(call.source as number) || take.max?.weight !== undefined,
        "a batch waits for its minimum",
      ).toBe(true);
    }
    const { policy } = this.#options.channel;
    const isOrdered = policy?.compareItems === undefined && !policy?.spread;
    for (const view of deliveries) {
      const item = this.items[view.payload as number] as LedgerItem;
      must(item.state === "visible", "C1/C6: only a visible item that nobody holds is delivered");
      must(item.stream === call.source, "a call gets items of its stream");
      must(take.key === undefined || item.key === take.key, "C2: a take of a key gets that key");
      const isAgain = item.delivery !== undefined;
      must(!isAgain || view.delivery === item.delivery, "C1: a redelivered item keeps its place");
      for (const other of this.items) {
        if (other.stream !== item.stream || other === item) continue;
        const isEarlier =
          other.delivery !== undefined
            ? other.delivery < view.delivery
            : other.producer === item.producer && other.rank < item.rank;
        if (item.key !== undefined && other.key === item.key) {
          must(other.state !== "inFlight" || other.holder === call.id, "C2: a key goes to one call at a time");
          must(!isEarlier || other.state !== "visible", "C2: FIFO per key");
        }
        if (isOrdered && isEarlier && take.key === undefined && item.key === undefined && other.key === undefined) {
          must(other.state !== "visible", "C1: items go in put order");
        }
      }
      item.state = "inFlight";
      item.holder = call.id;
      item.delivery = view.delivery;
    }
  }

  #isSealed(stream: number): boolean {
    for (const call of this.calls.values()) if (call.isOpen && call.sink === stream) return false;
    for (const put of this.openPuts.values()) if (put.call.sink === stream) return false;
    return [...this.calls.values()].some((call) => call.sink === stream);
  }

  #available(call: Call, take: TakeInput): LedgerItem[] {
    const heldByOthers = new Set<string>();
    for (const item of this.items) {
      if (item.stream === call.source && item.state === "inFlight" && item.key !== undefined && item.holder !== call.id)
        heldByOthers.add(item.key);
    }
    return this.items.filter(
      (item) =>
        item.stream === call.source &&
        item.state === "visible" &&
        (take.key === undefined || item.key === take.key) &&
        (item.key === undefined || !heldByOthers.has(item.key)),
    );
  }

  /** What must hold between any two inputs. */
  check(): void {
    const snapshot = this.channel.snapshot();
    const { capacity } = this.#options.channel;
    const waiting = snapshot.streams.flatMap((stream) => stream.waitingPuts);
    must(waiting.length === this.openPuts.size, "every put is answered or waits");
    // C3: nobody waits for credit that is there, and staged items do not wait for room that only they can make.
    for (const { stream, queuedItems, waitingPuts } of snapshot.streams) {
      if (waitingPuts.length === 0) continue;
      const used = snapshot.credit.find((each) => each.stream === stream);
      const { usedItems = 0, usedBytes = 0 } = used ?? {};
      const isFull = usedItems >= capacity.items || (capacity.bytes !== undefined && usedBytes + 9 > capacity.bytes);
      must(usedItems > 0 && isFull, "C3: a put waits only for credit of its own stream");
      must(queuedItems > 0 || !waitingPuts.some((put) => put.staged), "C6: staged puts do not block one another");
    }
    const inside = this.items.filter(
      (item) => item.state === "visible" || item.state === "inFlight" || item.state === "staged",
    ).length;
    for (const { id, state } of this.items) {
      must(
        this.finished.has(id) === (state === "acked" || state === "dropped"),
        "C7: finished once nobody will get it",
      );
    }
    const outside = waiting.reduce((sum, put) => sum + put.remainingItems, 0);
    must(snapshot.usedItems === inside - outside, "C3: what is inside is counted");
    for (const call of this.calls.values()) {
      for (const take of call.takes) {
        const stream = call.source as number;
        must(!this.failed.has(stream), "C4: a take of a failed stream fails at once");
        const available = this.#available(call, take).length;
        const min = Math.min(take.min ?? 1, take.max?.items ?? Number.POSITIVE_INFINITY);
        must(available < (this.#isSealed(stream) ? 1 : min), "no wake-up is lost");
        const left = this.items.some(
          (item) =>
            item.stream === stream &&
            (item.state === "visible" || (item.state === "inFlight" && item.holder !== call.id)),
        );
        must(left || !this.#isSealed(stream), "C4: an exhausted stream ends");
      }
    }
  }

  /** Everybody does their part: producers close, the rest work until their stream ends. */
  drain(): void {
    for (const call of this.calls.values()) {
      if (call.lost) this.die(call);
      while (call.takes.length > 0) this.cancel(call);
      if (call.source === undefined) this.close(call, { ok: true });
    }
    // An unbounded run of rounds would hide a hang; each round acknowledges something or ends somebody.
    for (let round = 0; round < 2000; round++) {
      const open = [...this.calls.values()].filter((call) => call.isOpen);
      if (open.length === 0) return;
      for (const call of open) {
        this.finish(call, undefined);
        if (!call.isOpen || call.takes.length > 0) continue;
        if ([...this.openPuts.values()].some((put) => put.call === call)) continue;
        const take: TakeInput = { call: call.id, take: ++this.#lastId, max: { items: 1 + (round % 5) }, nowMs: 0 };
        call.takes.push(take);
        const effects = this.channel.take(take);
        this.#apply(effects);
      }
      for (const call of open) {
        const isDone = this.failed.has(call.source as number) || this.#isSealed(call.source as number);
        const rest = this.items.some(
          (item) => item.stream === call.source && (item.state === "visible" || item.state === "inFlight"),
        );
        if (isDone && !rest && call.takes.length === 0) this.close(call, { ok: true });
      }
    }
    throw new Error(`no progress: ${JSON.stringify(this.channel.snapshot())}`);
  }
}
