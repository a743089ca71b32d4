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
    const seen = new Set([call]);
    const reached = this.#explore(seen);
    for (const each of seen) if (each === call || !this.#known.has(each)) this.#known.set(each, reached);
    return reached.has(party);
  }

  anyReaches(calls: Iterable<CallRecord>, party: Party): boolean {
    return this.#explore(new Set(calls)).has(party);
  }

  /** The parties with a member that asks, on which `calls` may depend; adds to `calls` whom they wait for. */
  #explore(calls: Set<CallRecord>): Set<Party> {
    const { order, members, holders } = this.#sources;
    const reached = new Set<Party>();
    const streams = new Set<string>();
    const add = (next: CallRecord): void => {
      if (next.parked || next.isWaiting) calls.add(next); // others depend on nobody
    };
    for (const each of calls) {
      if (each.parked) {
        const key = `${each.parked.on} ${each.parked.stream}`;
        if (!streams.has(key)) for (const next of order.awaitedBy(each)) add(next);
        streams.add(key);
      }
      const member = members.get(each.call);
      if (member?.state !== "asking") continue;
      const { party } = member;
      reached.add(party);
      for (const next of order.gangOf(each)) if (!party.members.has(next.call)) add(next);
      for (const { call: first } of order.predecessors(each, party.devices)) add(first);
      for (const device of party.devices)
        for (const other of holders.get(device)?.members.values() ?? []) add(other.call);
    }
    return reached;
  }
}
