/**
 * Which parties a call depends on, by way of data, credit and devices (L2). It reads the lock's state and remembers what
 * it found until `forget`, which is due whenever somebody asks, waits or gets devices.
 */
import type { CallOrder, CallRecord } from "./call-order.ts";
import type { Member, Party } from "./lock-party.ts";

export type DependenceSources = {
  readonly order: CallOrder;
  /** by call */
  readonly members: ReadonlyMap<string, Member>;
  /** by device */
  readonly holders: ReadonlyMap<string, Party>;
};

export class Dependence {
  readonly #sources: DependenceSources;
  /** All calls that were looked at together share what they reach: enough to know whom none of them reaches. */
  readonly #known = new Map<CallRecord, ReadonlySet<Party>>();
  #lastVisit = 0;

  constructor(sources: DependenceSources) {
    this.#sources = sources;
  }

  forget(): void {
    this.#known.clear();
  }

  /** Whether the call may depend on what `party` asks for. */
  reaches(call: CallRecord, party: Party): boolean {
    const shared = this.#known.get(call);
    if (shared && !shared.has(party)) return false;
    const { calls, parties } = this.#explore([call]);
    for (const each of calls) if (each === call || !this.#known.has(each)) this.#known.set(each, parties);
    return parties.has(party);
  }

  /** The parties on which any of the calls may depend. */
  reachedFrom(calls: Iterable<CallRecord>): ReadonlySet<Party> {
    return this.#explore(calls).parties;
  }

  /** The parties with a member that asks, on which the calls may depend, and these calls with all they wait for. */
  #explore(starts: Iterable<CallRecord>): { readonly calls: CallRecord[]; readonly parties: Set<Party> } {
    const { order, members, holders } = this.#sources;
    this.#lastVisit += 1;
    const visit = this.#lastVisit;
    const calls: CallRecord[] = [];
    const parties = new Set<Party>();
    const streams = new Set<string>();
    const kinds = new Map<Party, Set<string>>();
    const start = (next: CallRecord): void => {
      if (next.visit === visit) return;
      next.visit = visit;
      calls.push(next);
    };
    const add = (next: CallRecord): void => {
      if (next.parked.length > 0 || next.isWaiting) start(next); // others depend on nobody
    };
    for (const each of starts) start(each);
    for (const each of calls) {
      for (const wait of each.parked) {
        const key = `${wait.on} ${wait.stream}`;
        if (streams.has(key)) continue;
        streams.add(key);
        for (const awaited of order.awaitedBy(wait)) for (const next of awaited) add(next);
      }
      const member = members.get(each.call);
      if (member?.state !== "asking") continue;
      const { party } = member;
      let known = kinds.get(party);
      if (!known) {
        known = new Set();
        kinds.set(party, known);
        parties.add(party);
        for (const next of order.gangOf(each)) if (!party.members.has(next.call)) add(next);
        const others = new Set(party.devices.map((device) => holders.get(device)));
        for (const other of others) for (const { call: holder } of other?.members.values() ?? []) add(holder);
      }
      if (known.has(each.kind)) continue;
      known.add(each.kind);
      for (const { call: first } of order.predecessors(each, party.devices)) add(first);
    }
    return { calls, parties };
  }
}
