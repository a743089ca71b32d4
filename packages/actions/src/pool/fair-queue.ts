import type { FairShares } from "../decide/fair-shares.ts";

/** What the queue needs to know of an action. */
export type QueueEntry = {
  readonly tenant: string;
  /** the time at which it counts as submitted: each level of priority moves it earlier */
  readonly rank: number;
  /** seconds of all of its dominant resource that it is expected to take */
  readonly demand: number;
};

/**
 * The order of waiting actions: first come, first served within a tenant, tenants by their shares. Pure state.
 *
 * FQ1 within a tenant, entries come in the order of their rank; equal ranks in the order they were added.
 * FQ2 between tenants, next is always the one that was served least (`FairShares.levelOf`), counting what stands before it
 *    in the order; so a tenant that waits is reached, whatever the others submit.
 */
export class FairQueue<Entry extends QueueEntry> {
  readonly #shares: FairShares;
  readonly #tenants = new Map<string, Entry[]>();
  #size = 0;

  constructor(shares: FairShares) {
    this.#shares = shares;
  }

  get size(): number {
    return this.#size;
  }

  add(entry: Entry, nowMs: number): void {
    this.#shares.waits(entry.tenant, 1, nowMs);
    let entries = this.#tenants.get(entry.tenant);
    if (entries === undefined) {
      entries = [];
      this.#tenants.set(entry.tenant, entries);
    }
    let at = entries.length;
    while (at > 0 && entries[at - 1]!.rank > entry.rank) at--;
    entries.splice(at, 0, entry);
    this.#size++;
  }

  /** Takes an entry out; false when it is not there. */
  remove(entry: Entry, nowMs: number): boolean {
    const entries = this.#tenants.get(entry.tenant);
    const at = entries?.indexOf(entry) ?? -1;
    if (at === -1) return false;
    entries!.splice(at, 1);
    if (entries!.length === 0) this.#tenants.delete(entry.tenant);
    this.#shares.waits(entry.tenant, -1, nowMs);
    this.#size--;
    return true;
  }

  /** The first `limit` entries in the order in which they should be served. */
  order(limit: number, nowMs: number): Entry[] {
    const lanes = [...this.#tenants].map(([name, entries], at) => ({
      at,
      entries,
      level: this.#shares.levelOf(name, nowMs),
      weight: this.#shares.weightOf(name),
      next: 0,
    }));
    if (lanes.length === 1) return lanes[0]!.entries.slice(0, limit);
    // An ascending array is a heap.
    lanes.sort(byLevel);
    const ordered: Entry[] = [];
    while (ordered.length < limit && lanes.length > 0) {
      const least = lanes[0]!;
      const entry = least.entries[least.next++]!;
      least.level += entry.demand / least.weight;
      ordered.push(entry);
      if (least.next === least.entries.length) {
        const last = lanes.pop()!;
        if (lanes.length > 0) lanes[0] = last;
      }
      sinkFirst(lanes);
    }
    return ordered;
  }
}

type Lane = { readonly at: number; readonly level: number };

/** Equal levels as the tenants came. */
const byLevel = (a: Lane, b: Lane): number => a.level - b.level || a.at - b.at;

function sinkFirst<Item extends Lane>(heap: Item[]): void {
  const item = heap[0]!;
  let i = 0;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && byLevel(heap[child + 1]!, heap[child]!) < 0) child++;
    if (byLevel(heap[child]!, item) >= 0) break;
    heap[i] = heap[child]!;
    i = child;
  }
  if (heap.length > 0) heap[i] = item;
}
