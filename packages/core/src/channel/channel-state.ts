/**
 * A channel's state machine. It lives at the channel's home, owns every item from the moment a put hands it over until
 * a consumer acknowledges it, and never acts: each input returns the effects that the shell sends.
 *
 * The shell registers a call with `open` before the callee runs, in program order; pushes `put`, `take`, `ack`,
 * `commit` and `close` as they arrive; and reports deaths with `workerDied`, after which it says `retry` or `close`.
 * It cuts the link to a dead worker first, so that nothing late arrives in the name of a retried call.
 *
 * - C1 An item is in flight to one call until that call acknowledges it. If the call is abandoned first, the item
 *   regains its old place and is delivered again.
 * - C2 Items of a key are delivered in put order, and while a call holds one unacknowledged, the later ones go to that
 *   call or wait (`stream-queue.ts`). A batch holds at most `max.items` items and weighs at most `max.weight`, unless
 *   its only item weighs more.
 * - C3 Of each stream, items queued, in flight and staged fit the capacity, or their puts wait, in order, and are admitted
 *   piece by piece; nothing is dropped. Four exceptions keep a full stream from blocking itself: an empty one takes one
 *   item of any size; an item for which a take already waits passes through, since it need not be stored; a staged put passes
 *   while nothing is queued, since only its commit can make room; and a put of the workflow passes while the stream has had
 *   no consumer, since the workflow calls the consumers after it. Each stream has credit of its own, because steps
 *   that overlap end in order: what a later one put must not keep out what an earlier one needs to end.
 * - C4 When every producing call has closed well and nothing is left for a take, it gets `end`. A stream without a
 *   producer has not ended. The first producer's failure fails every take of the stream at once.
 * - C5 The policy orders items and takes, here and nowhere else (`pick-policy.ts`).
 * - C6 Outputs put by a call while it holds unacknowledged deliveries become visible together with the acknowledgement;
 *   if the call dies first they vanish with it, so a redelivered input never yields two outputs. Here: staged items
 *   are invisible until `commit`, keep their order, and are dropped by `abandon`. The shell acknowledges and commits
 *   across channels in one synchronous turn. Outputs of some deliveries alone come as a put that is `committed`, in the
 *   same turn as the acknowledgement of these.
 * - C7 The segment of a kept item is named by `finished` exactly once, when the channel will deliver it to nobody any more.
 * - C8 Takes in a gang are answered in rounds, to all ranks of the gang that have not left, in one turn: each item of a round
 *   to one of them, dealt by weight, and an empty batch to those for which nothing is left. So all get equally many batches,
 *   and end together.
 */
import { TreadleError } from "@treadle/contracts";
import type {
  AckInput,
  CallId,
  ChannelEffect,
  ChannelSnapshot,
  CloseInput,
  ItemList,
  OpenInput,
  PutInput,
  PutItem,
  RequestId,
  StreamId,
  TakeInput,
} from "./channel-messages.ts";
import { type Capacity, CreditGate } from "./credit-gate.ts";
import { type Batch, fillBatches } from "./fill-batches.ts";
import { fifo, type PickPolicy } from "./pick-policy.ts";
import type { Item } from "./stream-queue.ts";
import { type CallState, type PutState, StreamState } from "./stream-state.ts";

export type ChannelOptions = {
  readonly name: string;
  readonly capacity: Capacity;
  readonly policy?: PickPolicy | undefined;
};

export class ChannelState {
  readonly name: string;
  readonly #policy: PickPolicy;
  readonly #capacity: Capacity;
  /** Streams of one id share their credit: one that is not spent counts against the next. */
  readonly #gates = new Map<StreamId, CreditGate>();
  readonly #calls = new Map<CallId, CallState>();
  /** The latest stream of each id; `#streams` also holds earlier ones that are not spent. */
  readonly #current = new Map<StreamId, StreamState>();
  readonly #streams = new Set<StreamState>();
  readonly #dirty = new Set<StreamState>();
  #lastDelivery = 0;
  /** segments that the next effects name (C7) */
  #finished: string[] = [];

  constructor(options: ChannelOptions) {
    this.name = options.name;
    this.#capacity = options.capacity;
    this.#policy = options.policy ?? fifo;
  }

  /**
   * Registers a call as producer or consumer of a stream; a call may be both. A sink opened on a stream that has ended
   * and had a consumer begins a fresh stream of that id; before any consumer came, it adds to the same one, so that
   * two puts in a row reach one reader.
   */
  open(input: OpenInput): void {
    let call = this.#calls.get(input.call);
    if (call === undefined) {
      call = {
        call: input.call,
        gang: input.gang,
        worker: input.worker,
        source: undefined,
        sink: undefined,
        inFlight: [],
        inFlightWeight: 0,
        staged: [],
        lost: false,
        left: false,
      };
      this.#calls.set(input.call, call);
    }
    let stream = this.#current.get(input.stream);
    const isOver = stream && (stream.failure || stream.isSealed());
    if (!stream || (isOver && input.role === "sink" && (stream.hadConsumer || stream.failure))) {
      stream = new StreamState(input.stream, this.#policy, this.#gateOf(input.stream));
      this.#current.set(input.stream, stream);
      this.#streams.add(stream);
    }
    if (input.role === "source") {
      call.source = stream;
      stream.hadConsumer = true;
      stream.consumers.add(call);
    } else {
      call.sink = stream;
      stream.hadProducer = true;
      stream.producers.add(call);
    }
  }

  /**
   * Ends a call's part. Well: what it staged is committed, its waiting puts stay until they are accepted, and what it
   * left unacknowledged goes back. Badly: its staged items vanish and its stream fails (C4).
   */
  close(input: CloseInput): ChannelEffect[] {
    const out: ChannelEffect[] = [];
    const call = this.#calls.get(input.call);
    if (call === undefined) return out;
    if (input.outcome.ok) this.#commit(call);
    else this.#undo(call);
    this.#giveBack(call);
    this.#calls.delete(call.call);
    const { source, sink } = call;
    if (source) {
      source.consumers.delete(call);
      source.takes = source.takes.filter((take) => take.call !== call);
      this.#dirty.add(source);
    }
    if (sink) {
      sink.producers.delete(call);
      if (!input.outcome.ok) this.#fail(sink, call.worker, input.outcome.error, out);
      this.#dirty.add(sink);
    }
    return this.#settle(out);
  }

  put(input: PutInput): ChannelEffect[] {
    const { call: id, put } = input;
    const call = this.#calls.get(id);
    const stream = call?.sink;
    if (!call || !stream || call.lost || stream.failure) {
      for (let at = 0; at < input.items.length; at++) this.#finishPayload(input.items.at(at));
      const open = call && stream && !call.lost;
      const error = open ? this.#producerFailed(stream) : this.#notOpen(id, "sink", call);
      return this.#settle([{ type: "put-refused", put, call: id, error }]);
    }
    const staged = input.staged ?? false;
    const state: PutState = {
      put,
      call,
      stream,
      items: input.items,
      next: 0,
      staged,
      committed: input.committed ?? false,
      sinceMs: input.nowMs,
    };
    const out: ChannelEffect[] = [];
    stream.gate.enter(state, input.fromCaller === true && !stream.hadConsumer, out);
    // A full stream overrules a policy that declines.
    if (this.#policy.select && stream.gate.waitingPuts.length > 0)
      for (const each of this.#streams) if (each.gate === stream.gate) this.#dirty.add(each);
    return this.#settle(out);
  }

  take(input: TakeInput): ChannelEffect[] {
    const call = this.#calls.get(input.call);
    const stream = call?.source;
    if (!call || !stream || call.lost) {
      return [{ type: "fail", take: input.take, call: input.call, error: this.#notOpen(input.call, "source", call) }];
    }
    const parts = this.#policy.share && input.parts; // C5
    const maxItems = (parts === undefined ? input.max?.items : undefined) ?? Number.POSITIVE_INFINITY;
    stream.takes.push({
      take: input.take,
      call,
      maxItems,
      maxWeight: input.max?.weight ?? Number.POSITIVE_INFINITY,
      min: Math.min(input.min ?? 1, maxItems),
      parts,
      key: input.key,
      streams: input.streams ?? false,
      inGang: input.inGang ?? false,
      sinceMs: input.nowMs,
    });
    this.#dirty.add(stream);
    return this.#settle([]);
  }

  /** Withdraws a waiting take or the rest of a waiting put, as a cancelled caller asks. */
  cancel(input: { readonly call: CallId; readonly request: RequestId }): ChannelEffect[] {
    const call = this.#calls.get(input.call);
    if (!call) return [];
    const { source } = call;
    if (source) source.takes = source.takes.filter((take) => take.call !== call || take.take !== input.request);
    this.#dropPuts((put) => put.call === call && put.put === input.request);
    return this.#settle([]);
  }

  /** C1: from here on these items are done; their credit returns. */
  ack(input: AckInput): ChannelEffect[] {
    const call = this.#calls.get(input.call);
    if (!call?.source || call.lost) {
      return input.deliveries?.length ? [{ type: "stale-ack", call: input.call, deliveries: input.deliveries }] : [];
    }
    const { queue } = call.source;
    const held = call.inFlight;
    const asked = input.deliveries && new Set(input.deliveries);
    call.inFlight = asked ? held.filter((item) => !asked.has(item.delivery)) : [];
    for (const item of held) {
      if (asked && !asked.delete(item.delivery)) continue;
      this.#finish(call, item);
      queue.acknowledged(item);
    }
    if (call.inFlight.length === 0) call.inFlightWeight = 0;
    this.#dirty.add(call.source);
    return this.#settle(asked?.size ? [{ type: "stale-ack", call: call.call, deliveries: [...asked] }] : []);
  }

  /** Whether the call holds these deliveries, unacknowledged. */
  holds(id: CallId, deliveries: readonly number[]): boolean {
    const call = this.#calls.get(id);
    if (!call || call.lost) return false;
    const held = new Set(call.inFlight.map(({ delivery }) => delivery));
    return deliveries.every((delivery) => held.has(delivery));
  }

  /** How many deliveries the call holds. */
  numHeld(id: CallId): number {
    return this.#calls.get(id)?.inFlight.length ?? 0;
  }

  /** C6: what the call staged becomes visible, in the order it was put; what still waits for credit is as good as put. */
  commit(input: { readonly call: CallId }): ChannelEffect[] {
    const call = this.#calls.get(input.call);
    if (!call || call.lost) return [];
    this.#commit(call);
    return this.#settle([]);
  }

  /** Undoes what a call has not finished: deliveries regain their place (C1), staged items and waits vanish (C6). */
  abandon(input: { readonly calls: readonly CallId[] }): ChannelEffect[] {
    // All of them before anybody is served: what one gives back must not go to another one that starts over as well.
    for (const id of input.calls) {
      const call = this.#calls.get(id);
      if (call) this.#lose(call);
    }
    return this.#settle([]);
  }

  /** Abandons every call that the worker serves. They stay open until the supervisor decides: `retry` or `close`. */
  workerDied(input: { readonly worker: string }): ChannelEffect[] {
    for (const call of this.#calls.values()) if (call.worker === input.worker) this.#lose(call);
    return this.#settle([]);
  }

  /** An abandoned call runs again, perhaps elsewhere. */
  retry(input: { readonly call: CallId; readonly worker: string }): void {
    const call = this.#calls.get(input.call);
    if (!call) return;
    call.worker = input.worker;
    call.lost = false;
    call.left = false;
  }

  /** The call takes no more, although it stays open (C8). */
  left(input: { readonly call: CallId }): ChannelEffect[] {
    const call = this.#calls.get(input.call);
    if (!call?.source) return [];
    call.left = true;
    this.#dirty.add(call.source);
    return this.#settle([]);
  }

  /** Forgets what nobody will take any more, as at the end of a step; says how many items that were. Open calls stay. */
  discard(input: { readonly stream: StreamId }): { discardedItems: number; effects: ChannelEffect[] } {
    let discardedItems = 0;
    for (const stream of this.#streams) {
      if (stream.id !== input.stream) continue;
      discardedItems += stream.queue.queuedItems;
      this.#clearQueue(stream);
      if (stream.consumers.size + stream.producers.size + stream.numWaitingPuts === 0) this.#forget(stream);
      else this.#dirty.add(stream);
    }
    return { discardedItems, effects: this.#settle([]) };
  }

  /** Items that are visible and held by nobody, in the latest stream of that id. */
  queuedItems(id: StreamId): number {
    let queued = 0;
    for (const stream of this.#streams) if (stream.id === id) queued = stream.queue.queuedItems;
    return queued;
  }

  /** A put into a stream of that id waits for credit. */
  isFull(id: StreamId): boolean {
    return (this.#gates.get(id)?.waitingPuts.length ?? 0) > 0;
  }

  snapshot(): ChannelSnapshot {
    const credit = [...this.#gates].map(([stream, { usedItems, usedBytes, overdrawnItems }]) => ({
      stream,
      usedItems,
      usedBytes,
      overdrawnItems,
    }));
    const sumOf = (of: (each: (typeof credit)[number]) => number) => credit.reduce((sum, each) => sum + of(each), 0);
    return {
      channel: this.name,
      usedItems: sumOf((each) => each.usedItems),
      usedBytes: sumOf((each) => each.usedBytes),
      credit,
      streams: [...this.#streams].map((stream) => stream.snapshot()),
    };
  }

  #gateOf(id: StreamId): CreditGate {
    let gate = this.#gates.get(id);
    if (gate === undefined) {
      gate = new CreditGate({
        capacity: this.#capacity,
        show: (stream, source, index, item) => this.#show(stream, source, index, item),
        touch: (stream) => this.#dirty.add(stream),
      });
      this.#gates.set(id, gate);
    }
    return gate;
  }

  #show(stream: StreamState, source: ItemList, index: number, item: PutItem): void {
    this.#lastDelivery += 1;
    stream.gate.queuedItems += 1;
    stream.queue.push(source, index, item, this.#lastDelivery);
  }

  // Delivery.

  /** Runs until no put can be admitted and no take be answered: no wake-up is lost. */
  #settle(out: ChannelEffect[]): ChannelEffect[] {
    do {
      for (const gate of this.#gates.values()) gate.admitWaiting(out);
      for (const stream of this.#dirty) {
        this.#dirty.delete(stream);
        this.#serve(stream, out);
      }
    } while (this.#admitWithoutCredit(out) || this.#dirty.size > 0);
    if (this.#finished.length > 0) {
      out.push({ type: "finished", segments: this.#finished });
      this.#finished = [];
    }
    return out;
  }

  #admitWithoutCredit(out: ChannelEffect[]): boolean {
    let hasAdmitted = false;
    for (const gate of this.#gates.values()) hasAdmitted = gate.admitWithoutCredit(out) || hasAdmitted;
    return hasAdmitted;
  }

  #serve(stream: StreamState, out: ChannelEffect[]): void {
    if (stream.takes.length > 0) {
      if (stream.failure) {
        const error = this.#producerFailed(stream);
        for (const { take, call } of stream.takes) out.push({ type: "fail", take, call: call.call, error });
        stream.takes = [];
      } else {
        this.#deliver(stream, out);
        const ended = stream.takes.filter((take) => stream.hasEndedFor(take));
        for (const { take, call } of ended) out.push({ type: "end", take, call: call.call });
        if (ended.length > 0) stream.takes = stream.takes.filter((take) => !ended.includes(take));
      }
    }
    if (stream.isSpent()) this.#forget(stream);
  }

  #deliver(stream: StreamState, out: ChannelEffect[]): void {
    if (stream.queue.queuedItems === 0) return;
    const batches: Batch[] = fillBatches(stream, this.#policy, stream.gate.waitingPuts.length > 0 || stream.isSealed());
    if (batches.length === 0) return;
    const filled = new Set(batches.map((batch) => batch.take));
    stream.takes = stream.takes.filter((take) => !filled.has(take));
    for (const { take, items, weight } of batches) {
      const { call } = take;
      for (const item of items) call.inFlight.push(item);
      call.inFlightWeight += weight;
      stream.numInFlight += items.length;
      stream.gate.queuedItems -= items.length;
      stream.loads.set(call.worker, (stream.loads.get(call.worker) ?? 0) + weight);
      out.push({ type: "deliver", take: take.take, call: call.call, worker: call.worker, deliveries: items });
    }
  }

  // What acknowledging, committing, giving back and failing have in common.

  #finish(call: CallState, item: Item): void {
    (call.source as StreamState).gate.release(1, item.sizeBytes);
    this.#finishPayload(item);
    call.inFlightWeight -= item.weight;
    (call.source as StreamState).numInFlight -= 1;
  }

  #commit(call: CallState): void {
    const stream = call.sink;
    if (!stream) return;
    for (const put of stream.gate.waitingPuts) {
      if (put.call !== call) continue;
      put.staged = false;
      put.committed = true;
    }
    const { staged } = call;
    call.staged = [];
    stream.numStaged -= staged.length;
    for (const [index, item] of staged.entries()) {
      if (stream.failure) this.#drop(stream, item);
      else this.#show(stream, staged, index, item);
    }
    this.#dirty.add(stream);
  }

  #undo(call: CallState): void {
    if (call.sink) {
      for (const item of call.staged) this.#drop(call.sink, item);
      call.sink.numStaged -= call.staged.length;
      this.#dirty.add(call.sink);
    }
    call.staged = [];
    this.#dropPuts((put) => put.call === call && !put.committed);
    if (call.source) call.source.takes = call.source.takes.filter((take) => take.call !== call);
  }

  #lose(call: CallState): void {
    this.#undo(call);
    this.#giveBack(call);
    call.lost = true;
  }

  #giveBack(call: CallState): void {
    const stream = call.source;
    if (!stream) return;
    const items = call.inFlight;
    stream.loads.set(call.worker, (stream.loads.get(call.worker) ?? 0) - call.inFlightWeight);
    call.inFlight = [];
    call.inFlightWeight = 0;
    stream.numInFlight -= items.length;
    stream.queue.giveBack(items);
    stream.gate.queuedItems += items.length;
    if (stream.failure) this.#clearQueue(stream);
    this.#dirty.add(stream);
  }

  #fail(stream: StreamState, worker: string, error: unknown, out: ChannelEffect[]): void {
    stream.failure ??= { worker, error };
    this.#clearQueue(stream);
    const refusal = this.#producerFailed(stream);
    for (const put of this.#dropPuts((waiting) => waiting.stream === stream)) {
      out.push({ type: "put-refused", put: put.put, call: put.call.call, error: refusal });
    }
  }

  #clearQueue(stream: StreamState): void {
    const { items, bytes } = stream.queue.clear();
    stream.gate.queuedItems -= items.length;
    stream.gate.release(items.length, bytes);
    for (const item of items) this.#finishPayload(item);
  }

  #drop(stream: StreamState, item: PutItem): void {
    stream.gate.release(1, item.sizeBytes);
    this.#finishPayload(item);
  }

  /** What was admitted of them stays. */
  #dropPuts(matches: (put: PutState) => boolean): PutState[] {
    const dropped = [...this.#gates.values()].flatMap((gate) => gate.drop(matches));
    for (const { items, next } of dropped)
      for (let at = next; at < items.length; at++) this.#finishPayload(items.at(at));
    return dropped;
  }

  /** C7. */
  #finishPayload(item: Pick<PutItem, "segment"> | undefined): void {
    if (item?.segment !== undefined) this.#finished.push(item.segment);
  }

  #forget(stream: StreamState): void {
    this.#streams.delete(stream);
    if (this.#current.get(stream.id) === stream) this.#current.delete(stream.id);
    for (const other of this.#streams) if (other.gate === stream.gate) return;
    this.#gates.delete(stream.id);
  }

  #producerFailed(stream: StreamState): TreadleError {
    const { worker, error } = stream.failure as { worker: string; error: unknown };
    const reason = error instanceof Error ? error.message : String(error);
    return new TreadleError("channel.producer-failed", `producer '${worker}' of '${this.name}' failed: ${reason}`, {
      cause: error,
      details: { channel: this.name, stream: stream.id, producer: worker },
    });
  }

  #notOpen(id: CallId, role: "source" | "sink", call: CallState | undefined): TreadleError {
    if (call?.lost) {
      return new TreadleError("call.cancelled", `call '${id}' was abandoned on '${this.name}' when its worker died`);
    }
    return new TreadleError(
      "channel.closed",
      `call '${id}' does not hold '${this.name}' as a ${role}; pass the channel to the call, and use it before the call ends`,
    );
  }
}
