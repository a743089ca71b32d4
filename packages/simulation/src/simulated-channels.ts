/**
 * The home of every channel on virtual time: what `ChannelHomes` of the runtime does with the same state machines, with
 * answers where that one has promises.
 *
 * C6 across channels: before a call's next take, what it holds is acknowledged and what it put is committed, on all its
 * channels in one turn.
 */
import { type ChannelEffect, ChannelState, runnerName, StreamShares } from "@treadle/runtime/state-machines";
import type { Invariants } from "./invariants.ts";

export type ChannelEnd = { readonly channel: string; readonly role: "source" | "sink"; readonly stream: string };

/** What is known of an item: its place among those that were put into its stream. */
export type SimulatedItem = { readonly ordinal: number; isStaged: boolean; isDelivered: boolean };

export type Answer =
  | { readonly type: "batch"; readonly items: readonly SimulatedItem[] }
  | { readonly type: "end" }
  | { readonly type: "accepted" };

export type SimulatedChannelsOptions = {
  readonly now: () => number;
  /** items that a channel holds before a put waits */
  readonly capacityOf: (channel: string) => number;
  readonly invariants: Invariants;
  /** a call has put something into one of its channels */
  readonly onEnqueued: (call: string) => void;
  /** a take or put that had to wait has been served */
  readonly onAnswer: (call: string, answer: Answer) => void;
};

type OpenCall = {
  readonly worker: string;
  readonly ends: readonly ChannelEnd[];
  holds: boolean;
  staged: SimulatedItem[];
};

/** `most`: items that the answer may have. */
type Request = { readonly call: string; readonly end: ChannelEnd; readonly most: number };

export class SimulatedChannels {
  readonly #options: SimulatedChannelsOptions;
  readonly #channels = new Map<string, ChannelState>();
  readonly #calls = new Map<string, OpenCall>();
  readonly #shares = new Map<string, StreamShares>();
  readonly #ordinals = new Map<string, number>();
  readonly #requests = new Map<number, Request>();
  #lastRequest = 0;
  /** the request that is being made, and its answer when that comes at once */
  #making = 0;
  #atOnce: Answer | undefined;

  constructor(names: readonly string[], options: SimulatedChannelsOptions) {
    this.#options = options;
    for (const name of names)
      this.#channels.set(
        name,
        new ChannelState({ name, capacity: { items: options.capacityOf(name) }, endWhen: "delivered" }),
      );
  }

  /** Registers a call before its callee runs, in program order. */
  open(call: string, worker: string, ends: readonly ChannelEnd[]): void {
    if (ends.length === 0) return;
    this.#calls.set(call, { worker, ends, holds: false, staged: [] });
    for (const end of ends) {
      this.#channel(end).open({ call, worker, role: end.role, stream: end.stream });
      this.#sharesOf(end).open(end.role, call);
      this.#options.invariants.opened(end);
    }
  }

  close(call: string): void {
    const open = this.#calls.get(call);
    if (!open) return;
    this.#settleHoldings(call, open);
    this.#calls.delete(call);
    for (const end of open.ends) {
      this.#options.invariants.closed(end);
      this.#apply(this.#channel(end).close({ call, outcome: { ok: true } }));
      const shares = this.#sharesOf(end);
      shares.close(end.role, call);
      this.#serveShares(end);
      if (shares.isUnused) this.#shares.delete(keyOf(end));
    }
  }

  /** Undefined when the call has to wait; `onAnswer` says when it is over. */
  put(call: string, channel: string, count: number): Answer | undefined {
    const open = this.#openCall(call);
    const end = endOf(open, channel, "sink");
    const put = this.#ask({ call, end, most: 0 });
    const first = this.#ordinals.get(keyOf(end)) ?? 0;
    this.#ordinals.set(keyOf(end), first + count);
    const items = Array.from({ length: count }, (_, i) => ({
      ordinal: first + i,
      isStaged: open.holds,
      isDelivered: false,
    }));
    if (open.holds) open.staged.push(...items);
    this.#options.invariants.put(end, count);
    const packed = items.map((payload) => ({ payload, sizeBytes: 0 }));
    const how = { staged: open.holds, fromCaller: open.worker === runnerName, nowMs: this.#options.now() };
    this.#apply(this.#channel(end).put({ call, put, items: packed, ...how }));
    if (!this.#atOnce) {
      // The channel is full. Whoever waits for all of a stream gets its share of what there is, to make room.
      for (const each of open.ends) if (each.channel === channel) this.#serveShares(each, true);
    }
    this.#options.onEnqueued(call);
    return this.#answerOf();
  }

  /** So many items at once or the end of the stream; with undefined, the call's share of all of it. */
  take(call: string, channel: string, count: number | undefined): Answer | undefined {
    const open = this.#openCall(call);
    this.#settleHoldings(call, open);
    const end = endOf(open, channel, "source");
    const take = this.#ask({ call, end, most: count ?? Number.POSITIVE_INFINITY });
    if (count === undefined) {
      this.#sharesOf(end).ask({ take, call });
      this.#serveShares(end, this.#channel(end).isFull(end.stream));
    } else {
      const max = { items: count };
      this.#apply(this.#channel(end).take({ call, take, max, min: count, nowMs: this.#options.now() }));
    }
    return this.#answerOf();
  }

  snapshots(): ReturnType<ChannelState["snapshot"]>[] {
    return [...this.#channels.values()].map((channel) => channel.snapshot());
  }

  #ask(request: Request): number {
    this.#making = ++this.#lastRequest;
    this.#requests.set(this.#making, request);
    return this.#making;
  }

  #answerOf(): Answer | undefined {
    const answer = this.#atOnce;
    this.#atOnce = undefined;
    this.#making = 0;
    return answer;
  }

  #answer(id: string | number, answer: Answer): void {
    const { call } = this.#requests.get(id as number) as Request;
    this.#requests.delete(id as number);
    if (id === this.#making) this.#atOnce = answer;
    else this.#options.onAnswer(call, answer);
  }

  /** C6. */
  #settleHoldings(call: string, open: OpenCall): void {
    if (!open.holds) return;
    open.holds = false;
    for (const item of open.staged) item.isStaged = false;
    open.staged = [];
    const channels = new Set(open.ends.map((end) => this.#channel(end)));
    const effects: ChannelEffect[] = [];
    for (const channel of channels) effects.push(...channel.ack({ call }));
    for (const channel of channels) effects.push(...channel.commit({ call }));
    this.#apply(effects);
  }

  #serveShares(end: ChannelEnd, isFull = false): void {
    const state = this.#channel(end);
    this.#sharesOf(end).serve(
      () => state.queuedItems(end.stream),
      ({ take, call }, items) =>
        this.#apply(state.take({ call, take, max: { items }, min: 1, nowMs: this.#options.now() })),
      isFull,
    );
  }

  #apply(effects: readonly ChannelEffect[]): void {
    const { invariants } = this.#options;
    for (const effect of effects) {
      switch (effect.type) {
        case "put-accepted":
          this.#answer(effect.put, { type: "accepted" });
          break;
        case "deliver": {
          const { end, most } = this.#requests.get(effect.take as number) as Request;
          (this.#calls.get(effect.call) as OpenCall).holds = true;
          const items = effect.deliveries.map(({ payload }) => payload as SimulatedItem);
          invariants.delivered(end, effect.deliveries, items, most);
          this.#answer(effect.take, { type: "batch", items });
          break;
        }
        case "end":
          invariants.ended((this.#requests.get(effect.take as number) as Request).end);
          this.#answer(effect.take, { type: "end" });
          break;
        case "put-refused":
        case "fail":
          throw effect.error;
        case "stale-ack":
          throw new Error(`C1: '${effect.call}' acknowledged what it did not hold`);
        case "finished":
          break; // no payload is kept outside of the channel
      }
    }
  }

  #channel(end: ChannelEnd): ChannelState {
    return this.#channels.get(end.channel) as ChannelState;
  }

  #sharesOf(end: ChannelEnd): StreamShares {
    let shares = this.#shares.get(keyOf(end));
    if (!shares) {
      shares = new StreamShares();
      this.#shares.set(keyOf(end), shares);
    }
    return shares;
  }

  #openCall(call: string): OpenCall {
    const open = this.#calls.get(call);
    if (!open) throw new Error(`call '${call}' uses a channel that it was not given`);
    return open;
  }
}

export const keyOf = (end: ChannelEnd): string => `${end.channel}\n${end.stream}`;

function endOf({ ends, worker }: OpenCall, channel: string, role: ChannelEnd["role"]): ChannelEnd {
  const end = ends.find((each) => each.channel === channel && each.role === role);
  if (!end) throw new Error(`'${worker}' has no ${role} of channel '${channel}'`);
  return end;
}
