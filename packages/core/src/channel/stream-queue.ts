/**
 * The visible items of one stream that nobody holds, and who may take which.
 *
 * Ownership of keys (C2): while a call holds unacknowledged items of a key, that call *owns* the key; the key's later
 * items go to the owner or wait. The key is free again when the owner has acknowledged, or given back, the last one.
 * Since a call gives back everything it holds at once, returned items of a key always precede the queued ones.
 *
 * Costs: keyless items in put order go through a ring, O(1) each, and are no object while they wait; keys, priorities and
 * returned items go through heaps, O(log n) each.
 */
import type { CallId, ItemList, ItemView, PutItem } from "./channel-messages.ts";
import { LazyHeap, Ring } from "./ordered-items.ts";
import type { PickPolicy } from "./pick-policy.ts";

/** A stored item. */
export type Item = ItemView & { queued: boolean };

/** Items that were put one after the other and wait in that order; `delivery` is that of `next`. */
type Run = { readonly source: ItemList; next: number; end: number; delivery: number };

type KeyQueue = {
  readonly items: Ring<Item>;
  weight: number;
  owner: Owned | undefined;
  inFlight: number;
};

/** The heads of the keys that one call owns, and how much is queued behind them. */
type Owned = { readonly call: CallId; readonly ready: LazyHeap<Item>; items: number; weight: number; keys: number };

export class StreamQueue {
  queuedItems = 0;
  queuedWeight = 0;
  queuedBytes = 0;

  readonly #compare: (a: ItemView, b: ItemView) => number;
  /** Keyless items in put order; empty when the policy orders items otherwise. */
  readonly #fresh = new Ring<Run>();
  /** The run that grows. */
  #lastRun: Run | undefined;
  /** The first of the ring, once somebody has looked at it. */
  #freshFront: Item | undefined;
  readonly #useRing: boolean;
  /** Keyless items that are not in the ring, and the heads of free keys. */
  readonly #ready: LazyHeap<Item>;
  readonly #keys = new Map<string, KeyQueue>();
  readonly #owned = new Map<CallId, Owned>();
  #freeItems = 0;
  #freeWeight = 0;

  constructor(policy: PickPolicy) {
    const order = policy.compareItems;
    this.#compare = order ? (a, b) => order(a, b) || a.delivery - b.delivery : (a, b) => a.delivery - b.delivery;
    this.#useRing = order === undefined && policy.select === undefined;
    this.#ready = new LazyHeap<Item>(this.#compare, (item) => {
      if (!item.queued) return false;
      if (item.key === undefined) return true;
      const key = this.#keys.get(item.key);
      return key !== undefined && key.owner === undefined && key.items.front() === item;
    });
  }

  /** Appends `source.at(index)`, which is `put`; its `delivery` exceeds that of every item before. */
  push(source: ItemList, index: number, put: PutItem, delivery: number): void {
    if (put.key === undefined && this.#useRing) {
      const weight = put.weight ?? 1;
      this.#count(weight, put.sizeBytes, 1);
      this.#countFree(weight, 1);
      const run = this.#lastRun;
      if (run && run.source === source && run.end === index && run.delivery + index - run.next === delivery) {
        run.end += 1;
        return;
      }
      this.#lastRun = { source, next: index, end: index + 1, delivery };
      this.#fresh.push(this.#lastRun);
      return;
    }
    const item = itemOf(put, delivery);
    this.#count(item.weight, item.sizeBytes, 1);
    if (item.key === undefined) {
      this.#countFree(item.weight, 1);
      this.#ready.push(item);
      return;
    }
    let key = this.#keys.get(item.key);
    if (key === undefined) {
      key = { items: new Ring(), weight: 0, owner: undefined, inFlight: 0 };
      this.#keys.set(item.key, key);
    }
    key.items.push(item);
    key.weight += item.weight;
    const owner = key.owner;
    if (owner === undefined) this.#countFree(item.weight, 1);
    else {
      owner.items += 1;
      owner.weight += item.weight;
    }
    if (key.items.size === 1) (owner?.ready ?? this.#ready).push(item);
  }

  availableItems(call: CallId, key?: string): number {
    if (key !== undefined) return this.#openKey(call, key)?.items.size ?? 0;
    return this.#owned.size === 0 ? this.#freeItems : this.#freeItems + (this.#owned.get(call)?.items ?? 0);
  }

  availableWeight(call: CallId, key?: string): number {
    if (key !== undefined) return this.#openKey(call, key)?.weight ?? 0;
    return this.#freeWeight + (this.#owned.get(call)?.weight ?? 0);
  }

  /** True when an item with this key would be available to the call. */
  mayTake(call: CallId, key: string | undefined): boolean {
    const owner = key === undefined ? undefined : this.#keys.get(key)?.owner;
    return owner === undefined || owner.call === call;
  }

  /** Items of a key that wait here. */
  queuedOfKey(key: string): number {
    return this.#keys.get(key)?.items.size ?? 0;
  }

  /** The first item, in the policy's order, that the call may take. */
  front(call: CallId, key?: string): Item | undefined {
    if (key !== undefined) return this.#openKey(call, key)?.items.front();
    let best = this.#firstFresh();
    if (this.#ready.size > 0) best = this.#earlier(best, this.#ready.front());
    if (this.#owned.size > 0) best = this.#earlier(best, this.#owned.get(call)?.ready.front());
    return best;
  }

  /** Hands `item`, which must be the front of its key, to the call. */
  take(item: Item, call: CallId): void {
    item.queued = false;
    this.#count(item.weight, item.sizeBytes, -1);
    if (item.key === undefined) {
      this.#countFree(item.weight, -1);
      if (this.#freshFront === item) this.#shiftFresh();
      else if (this.#ready.front() === item) this.#ready.pop();
      return;
    }
    const key = this.#keys.get(item.key) as KeyQueue;
    if (key.owner === undefined) this.#own(key, call);
    const owner = key.owner as unknown as Owned;
    key.items.shift();
    key.weight -= item.weight;
    key.inFlight += 1;
    owner.items -= 1;
    owner.weight -= item.weight;
    const next = key.items.front();
    if (next) owner.ready.push(next);
  }

  /** The call has acknowledged an item: the last one of a key frees the key. */
  acknowledged(item: Item): void {
    if (item.key === undefined) return;
    const key = this.#keys.get(item.key) as KeyQueue;
    key.inFlight -= 1;
    if (key.inFlight === 0) this.#disown(item.key, key);
  }

  /** Puts back everything a call holds, in any order; each item regains its old place (C1). */
  giveBack(items: readonly Item[]): void {
    const touched = new Map<string, KeyQueue>();
    const latestFirst = [...items].sort((a, b) => b.delivery - a.delivery);
    for (const item of latestFirst) {
      item.queued = true;
      this.#count(item.weight, item.sizeBytes, 1);
      if (item.key === undefined) {
        this.#countFree(item.weight, 1);
        this.#ready.push(item);
        continue;
      }
      const key = this.#keys.get(item.key) as KeyQueue;
      const owner = key.owner as Owned;
      key.items.unshift(item);
      key.weight += item.weight;
      key.inFlight -= 1;
      owner.items += 1;
      owner.weight += item.weight;
      touched.set(item.key, key);
    }
    for (const [name, key] of touched) this.#disown(name, key);
  }

  /** Everything the call may take now, in put order. One pass over the stream. */
  candidates(call: CallId, only?: string): Item[] {
    const found: Item[] = [];
    // Only policies that select look at all of them, and for those the ring is empty.
    if (only === undefined) {
      for (const item of this.#ready.live()) if (item.key === undefined) found.push(item);
    }
    for (const [name, key] of this.#keys) {
      if ((only === undefined || only === name) && (!key.owner || key.owner.call === call)) found.push(...key.items);
    }
    return found.sort((a, b) => a.delivery - b.delivery);
  }

  /** Forgets what is queued and says what it was; items in flight keep their keys until they are settled. */
  clear(): { items: readonly Item[]; bytes: number } {
    const dropped = { items: [] as Item[], bytes: this.queuedBytes };
    const calls = [...this.#owned.keys()];
    while (this.#freeItems > 0) dropped.items.push(this.#discard(""));
    for (const call of calls) while (this.availableItems(call) > 0) dropped.items.push(this.#discard(call));
    return dropped;
  }

  #discard(call: CallId): Item {
    const item = this.front(call) as Item;
    this.take(item, call);
    this.acknowledged(item);
    return item;
  }

  #firstFresh(): Item | undefined {
    if (this.#freshFront !== undefined) return this.#freshFront;
    const run = this.#fresh.front();
    if (run !== undefined) this.#freshFront = itemOf(run.source.at(run.next) as PutItem, run.delivery);
    return this.#freshFront;
  }

  #shiftFresh(): void {
    this.#freshFront = undefined;
    const run = this.#fresh.front() as Run;
    run.next += 1;
    run.delivery += 1;
    if (run.next < run.end) return;
    this.#fresh.shift();
    if (this.#lastRun === run) this.#lastRun = undefined;
  }

  #openKey(call: CallId, name: string): KeyQueue | undefined {
    const key = this.#keys.get(name);
    return key && (key.owner === undefined || key.owner.call === call) ? key : undefined;
  }

  #earlier(a: Item | undefined, b: Item | undefined): Item | undefined {
    if (a === undefined) return b;
    if (b === undefined) return a;
    return this.#compare(a, b) <= 0 ? a : b;
  }

  #own(key: KeyQueue, call: CallId): void {
    let owned = this.#owned.get(call);
    if (owned === undefined) {
      const created: Owned = {
        call,
        items: 0,
        weight: 0,
        keys: 0,
        ready: new LazyHeap<Item>(this.#compare, (item) => {
          const at = this.#keys.get(item.key as string);
          return item.queued && at?.owner === created && at.items.front() === item;
        }),
      };
      owned = created;
      this.#owned.set(call, owned);
    }
    key.owner = owned;
    owned.keys += 1;
    owned.items += key.items.size;
    owned.weight += key.weight;
    this.#freeItems -= key.items.size;
    this.#freeWeight -= key.weight;
  }

  #disown(name: string, key: KeyQueue): void {
    const owner = key.owner as Owned;
    key.owner = undefined;
    owner.keys -= 1;
    owner.items -= key.items.size;
    owner.weight -= key.weight;
    this.#freeItems += key.items.size;
    this.#freeWeight += key.weight;
    if (owner.keys === 0) this.#owned.delete(owner.call);
    const head = key.items.front();
    if (head) this.#ready.push(head);
    else this.#keys.delete(name);
  }

  #count(weight: number, sizeBytes: number, sign: 1 | -1): void {
    this.queuedItems += sign;
    this.queuedWeight = this.queuedItems === 0 ? 0 : this.queuedWeight + sign * weight;
    this.queuedBytes += sign * sizeBytes;
  }

  #countFree(weight: number, sign: 1 | -1): void {
    this.#freeItems += sign;
    // Sums of fractions drift; an empty queue weighs nothing.
    this.#freeWeight = this.#freeItems === 0 ? 0 : this.#freeWeight + sign * weight;
  }
}

function itemOf({ key, weight, priority, sizeBytes, payload, segment }: PutItem, delivery: number): Item {
  return {
    delivery,
    key,
    weight: weight ?? 1,
    priority: priority ?? 0,
    sizeBytes,
    payload,
    segment,
    queued: true,
  };
}
