/** What the queue needs to know of an action. */
export type QueueEntry = {
  readonly tenant: string;
  /** the time at which it counts as submitted: each level of priority moves it earlier */
  readonly rank: number;
  /** what it will take from its tenant's share, in any unit that is the same for all */
  readonly cost: number;
};

/**
 * The order of waiting actions: first come, first served within a tenant, tenants by their share of what was served.
 * Pure state.
 *
 * F1 within a tenant, entries come in the order of their rank; equal ranks in the order they were added.
 * F2 between tenants, next is always the one that was served least by its weight, counting what stands before it in
 *    the order; so a tenant that waits is reached, whatever the others submit.
 * F3 a tenant that comes back starts level with the least served one that waits: idling saves nothing up.
 */
export class FairQueue<Entry extends QueueEntry> {
  readonly #weights: ReadonlyMap<string, number>;
  readonly #tenants = new Map<string, { entries: Entry[]; served: number }>();
  #size = 0;

  constructor(weights: ReadonlyMap<string, number> = new Map()) {
    this.#weights = weights;
  }

  get size(): number {
    return this.#size;
  }

  add(entry: Entry): void {
    let tenant = this.#tenants.get(entry.tenant);
    if (tenant === undefined) {
      tenant = { entries: [], served: 0 };
      this.#tenants.set(entry.tenant, tenant);
    }
    if (tenant.entries.length === 0) {
      const waiting = [...this.#tenants.values()].filter((t) => t.entries.length > 0).map((t) => t.served);
      if (waiting.length > 0) tenant.served = Math.max(tenant.served, Math.min(...waiting));
    }
    const { entries } = tenant;
    let at = entries.length;
    while (at > 0 && entries[at - 1]!.rank > entry.rank) at--;
    entries.splice(at, 0, entry);
    this.#size++;
  }

  /** Takes an entry out; false when it is not there. */
  remove(entry: Entry): boolean {
    const entries = this.#tenants.get(entry.tenant)?.entries;
    const at = entries?.indexOf(entry) ?? -1;
    if (at === -1) return false;
    entries!.splice(at, 1);
    this.#size--;
    return true;
  }

  /** Counts against the tenant's share what an entry was given. */
  charge(tenant: string, cost: number): void {
    const state = this.#tenants.get(tenant);
    if (state !== undefined) state.served += cost / this.#weightOf(tenant);
  }

  /** The first `limit` entries in the order in which they should be served. */
  order(limit: number): Entry[] {
    const lanes = [...this.#tenants]
      .filter(([, t]) => t.entries.length > 0)
      .map(([name, t]) => ({ entries: t.entries, served: t.served, weight: this.#weightOf(name), next: 0 }));
    if (lanes.length === 1) return lanes[0]!.entries.slice(0, limit);
    const ordered: Entry[] = [];
    while (ordered.length < limit) {
      let least: (typeof lanes)[number] | undefined;
      for (const lane of lanes)
        if (lane.next < lane.entries.length && (least === undefined || lane.served < least.served)) least = lane;
      if (least === undefined) break;
      const entry = least.entries[least.next++]!;
      least.served += entry.cost / least.weight;
      ordered.push(entry);
    }
    return ordered;
  }

  #weightOf(tenant: string): number {
    return this.#weights.get(tenant) ?? 1;
  }
}
