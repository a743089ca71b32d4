/**
 * The door of a stream: counts what is inside against the capacity and keeps the puts that wait for credit, in order
 * (C3). It owns the waiting puts and the staged items' credit; where an admitted item goes is the channel's business.
 */
import type { ChannelEffect, ItemList, PutItem } from "./channel-messages.ts";
import type { PutState, StreamState, TakeState } from "./stream-state.ts";

/** `item` is `source.at(index)`. */
export type ShowItem = (stream: StreamState, source: ItemList, index: number, item: PutItem) => void;

/** Read whenever an item comes: with another plan it may be another. */
export type Capacity = { readonly items: number; readonly bytes?: number | undefined };

export type CreditGateOptions = {
  readonly capacity: Capacity;
  /** Gives a visible item its place in the stream. */
  readonly show: ShowItem;
  /** The stream has changed and must be served. */
  readonly touch: (stream: StreamState) => void;
};

type Demand = {
  readonly takes: readonly TakeState[];
  items: number;
  weight: number;
  matches: number;
};

export class CreditGate {
  usedItems = 0;
  usedBytes = 0;
  overdrawnItems = 0;
  /** Visible and held by nobody; counted by the channel. */
  queuedItems = 0;
  #puts: PutState[] = [];
  readonly #capacity: Capacity;
  readonly #show: ShowItem;
  readonly #touch: (stream: StreamState) => void;

  constructor(options: CreditGateOptions) {
    this.#capacity = options.capacity;
    this.#show = options.show;
    this.#touch = options.touch;
  }

  get waitingPuts(): readonly PutState[] {
    return this.#puts;
  }

  release(items: number, bytes: number): void {
    this.usedItems -= items;
    this.usedBytes -= bytes;
  }

  /** Admits what fits and lets the rest wait behind the puts that came before; or admits all of them. */
  enter(put: PutState, isFree: boolean, out: ChannelEffect[]): void {
    this.#touch(put.stream);
    if (isFree) {
      for (const each of this.#puts) this.#admitAll(each, out);
      this.#leave(this.#puts.splice(0));
      this.#admitAll(put, out);
      return;
    }
    if (this.#puts.length === 0 && this.#admitWithCredit(put, out)) return;
    this.#puts.push(put);
    put.stream.numWaitingPuts += 1;
  }

  /** Admits waiting puts in order, as far as there is credit. */
  admitWaiting(out: ChannelEffect[]): void {
    if (this.#puts.length === 0) return;
    let numDone = 0;
    for (const put of this.#puts) {
      const { next } = put;
      const isDone = this.#admitWithCredit(put, out);
      if (put.next > next) this.#touch(put.stream);
      if (!isDone) break;
      numDone += 1;
    }
    if (numDone > 0) this.#leave(this.#puts.splice(0, numDone));
  }

  /**
   * C3's exceptions: what a waiting take lacks passes, in the stream's order, up to what the takes can use; staged items
   * pass while nothing is queued. True when anything passed.
   */
  admitWithoutCredit(out: ChannelEffect[]): boolean {
    if (this.#puts.length === 0) return false;
    const hasQueued = this.queuedItems > 0;
    const demands = new Map<StreamState, Demand>();
    const done = new Set<PutState>();
    const before = this.overdrawnItems;
    for (const put of this.#puts) {
      const { stream } = put;
      let demand = demands.get(stream);
      if (demand === undefined) {
        demand = this.#demand(stream);
        demands.set(stream, demand);
      }
      const passes = put.staged && !hasQueued;
      while (put.next < put.items.length && (passes || (demand.items > 0 && demand.weight > 0 && demand.matches > 0))) {
        const item = put.items.at(put.next) as PutItem;
        if (isWanted(demand, stream, item)) {
          demand.matches -= 1;
          demand.items -= put.staged ? 0 : 1;
          demand.weight -= put.staged ? 0 : (item.weight ?? 1);
        }
        this.#admit(put, item);
        this.overdrawnItems += 1;
        this.#touch(stream);
      }
      if (put.next < put.items.length) demand.items = 0;
      else {
        out.push({ type: "put-accepted", put: put.put, call: put.call.call });
        done.add(put);
      }
    }
    if (done.size > 0) this.drop((put) => done.has(put));
    return this.overdrawnItems > before;
  }

  /** Forgets waiting puts; what was already admitted of them stays. */
  drop(matches: (put: PutState) => boolean): PutState[] {
    const dropped = this.#puts.filter(matches);
    if (dropped.length > 0) {
      this.#puts = this.#puts.filter((put) => !matches(put));
      this.#leave(dropped);
    }
    return dropped;
  }

  #admitAll(put: PutState, out: ChannelEffect[]): void {
    for (; put.next < put.items.length; ) {
      const item = put.items.at(put.next) as PutItem;
      if (!this.#hasCredit(item.sizeBytes)) this.overdrawnItems += 1;
      this.#admit(put, item);
    }
    out.push({ type: "put-accepted", put: put.put, call: put.call.call });
  }

  #leave(puts: readonly PutState[]): void {
    for (const put of puts) {
      put.stream.numWaitingPuts -= 1;
      this.#touch(put.stream);
    }
  }

  #hasCredit(sizeBytes: number): boolean {
    if (this.usedItems === 0) return true;
    const { items, bytes = Number.POSITIVE_INFINITY } = this.#capacity;
    return this.usedItems < items && this.usedBytes + sizeBytes <= bytes;
  }

  /** Admits as much of a put as fits; true when all of it did. */
  #admitWithCredit(put: PutState, out: ChannelEffect[]): boolean {
    const { items } = put;
    while (put.next < items.length) {
      const item = items.at(put.next) as PutItem;
      if (!this.#hasCredit(item.sizeBytes)) return false;
      this.#admit(put, item);
    }
    out.push({ type: "put-accepted", put: put.put, call: put.call.call });
    return true;
  }

  #admit(put: PutState, item: PutItem): void {
    this.usedItems += 1;
    this.usedBytes += item.sizeBytes;
    if (put.staged) {
      put.call.staged.push(item);
      put.stream.numStaged += 1;
    } else this.#show(put.stream, put.items, put.next, item);
    put.next += 1;
  }

  /** What the waiting takes of a stream could still use, and how much of that its waiting puts have. */
  #demand(stream: StreamState): Demand {
    const alone = stream.takes.filter(({ inGang }) => !inGang);
    const gangs = stream.gatheredGangs();
    const demand: Demand = { takes: [...alone, ...gangs.flat()], items: 0, weight: 0, matches: 0 };
    for (const { call, key, maxItems, maxWeight } of alone) {
      demand.items += maxItems - stream.queue.availableItems(call.call, key);
      demand.weight += maxWeight - stream.queue.availableWeight(call.call, key);
    }
    // C8: a rank that takes with its gang gets something once all of its ranks wait, and a round's items are for all of them.
    for (const [first, ...others] of gangs as [TakeState, ...TakeState[]][]) {
      demand.items += others.reduce((sum, { maxItems }) => sum + maxItems, first.maxItems);
      demand.items -= stream.queue.availableItems(first.call.call);
      demand.weight = Number.POSITIVE_INFINITY;
    }
    for (const put of this.#puts) {
      if (put.stream !== stream) continue;
      for (let at = put.next; at < put.items.length && demand.matches < demand.items; at++) {
        if (isWanted(demand, stream, put.items.at(at) as PutItem)) demand.matches += 1;
      }
    }
    return demand;
  }
}

function isWanted({ takes }: Demand, stream: StreamState, item: PutItem): boolean {
  return takes.some((take) => {
    return (take.key === undefined || take.key === item.key) && stream.queue.mayTake(take.call.call, item.key);
  });
}
