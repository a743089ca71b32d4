/** Who goes next (L2), and the swaps that come before a grant (L4). The lock's state machine drives it. */
import { TreadleError } from "@treadle/contracts";
import { type CallRecord, hasHadTurn } from "./call-order.ts";
import { Dependence } from "./dependence.ts";
import type { LockLease } from "./lock-lease.ts";
import type { LockMembers } from "./lock-members.ts";
import type { LockEffect } from "./lock-messages.ts";
import type { Party } from "./lock-party.ts";
import { outOfMemory } from "./lock-reports.ts";
import type { Want, WorkerState } from "./residency.ts";

export class LockSchedule {
  readonly #members: LockMembers;
  readonly #lease: LockLease;
  readonly #maxBypass: number;
  readonly #dependence: Dependence;

  constructor(members: LockMembers, lease: LockLease, maxBypass: number) {
    this.#members = members;
    this.#lease = lease;
    this.#maxBypass = maxBypass;
    const { order, byCall, parties } = members;
    this.#dependence = new Dependence({ order, members: byCall, holders: parties.holders });
  }

  /**
   * A gang's ranks meet in collectives, so one that has its data must leave the devices to the producers of those that
   * have none yet. Those that wait for no open call, or for this very gang, would be waited for in vain.
   */
  #mayReturn(party: Party): boolean {
    if (!party.has("asking")) return false;
    const asked = new Set<ReadonlySet<CallRecord>>();
    for (const { call, state } of party.members.values()) {
      if (state !== "lent") continue;
      for (const wait of call.parked) {
        const suppliers = this.#members.order.suppliersOf(wait);
        if (suppliers.size === 0 || asked.has(suppliers)) continue; // fellow ranks mostly wait for the same
        asked.add(suppliers);
        if (!this.#dependence.reachedFrom(suppliers).has(party)) return false;
      }
    }
    return true;
  }

  /** In line for the second time: before others, but they can tell that it came after them. */
  #wait(party: Party): void {
    party.arrival = this.#members.nextArrival();
    this.#members.parties.move(party, "waiting");
  }

  /** Reserves for whoever may go now, and takes the next steps towards their grants. */
  run(out: LockEffect[]): LockEffect[] {
    const { parties } = this.#members;
    this.#noteChanges();
    for (const party of [...parties.in("gathering")]) this.#members.gather(party);
    for (const party of this.#members.asked) {
      if (party.state !== "lent" || !party.has("asking")) this.#members.asked.delete(party);
      else if (this.#mayReturn(party)) this.#wait(party);
    }
    const claimed = new Set<string>();
    const started: Party[] = [];
    // Most wait for a device that is held, or for a call that goes first; only the others need to be put in order.
    const line = this.#sorted(parties.inLine);
    for (let at = 0; at < line.length; at++) {
      const party = line[at] as Party;
      const { devices } = party;
      const isFree =
        devices.every((device) => !parties.holders.has(device)) &&
        (!devices.some((device) => claimed.has(device)) || this.#isAwaited(party, claimed));
      const isOverdue = party.isOverdue(this.#maxBypass);
      if ((!isFree && !isOverdue) || !this.#mayGo(party)) continue;
      if (isFree && !this.#lease.mayReserve(party)) continue;
      if (isFree) {
        started.push(party);
        // Somebody further back may have waited for this.
        const unblocked = this.#reserve(party, devices).filter((other) => parties.inLine.has(other));
        const next = unblocked.filter((other) => this.#compare(party, other) < 0);
        if (next.length > 0) line.splice(at + 1, line.length, ...this.#sorted([...line.slice(at + 1), ...next]));
      } else for (const device of devices) claimed.add(device);
    }
    // One plan for all that start together: what must leave for one may be all that another needs (L4).
    if (started.length > 1)
      this.#makeRoom(
        started.flatMap((party) => party.wants),
        out,
      );
    for (const party of started) this.#prepare(party, out);
    this.#lease.settle(parties.holders, out);
    return out;
  }

  /** Whether those that hold claimed devices wait for it: kept off, it would be waited for in vain. */
  #isAwaited(party: Party, claimed: ReadonlySet<string>): boolean {
    const { holders } = this.#members.parties;
    const holding = new Set([...claimed].flatMap((device) => holders.get(device) ?? []));
    const calls = [...holding].flatMap(({ members }) => [...members.values()].map(({ call }) => call));
    return this.#dependence.reachedFrom(calls).has(party);
  }

  #sorted(parties: Iterable<Party>): Party[] {
    return [...parties].sort((a, b) => this.#compare(a, b));
  }

  #compare(a: Party, b: Party): number {
    return this.#rank(a) - this.#rank(b) || a.sequence - b.sequence || a.arrival - b.arrival;
  }

  #rank(party: Party): number {
    if (party.isOverdue(this.#maxBypass)) return 0;
    return party.reclaims ? 1 : 2;
  }

  #mayGo(party: Party): boolean {
    if (party.reclaims) return true;
    const { parties, order } = this.#members;
    if (parties.isBlocked(party)) return false;
    const kinds = new Set<string>();
    for (const { call } of party.members.values()) {
      if (kinds.has(call.kind)) continue;
      kinds.add(call.kind);
      for (const first of order.predecessors(call, party.devices)) {
        if (this.#dependence.reaches(first.call, party)) continue;
        parties.block(party, first.call);
        return false;
      }
    }
    return true;
  }

  /**
   * Unblocks the parties of which another answer is possible. A call that blocks one may depend on it only once there is
   * a new way from the call to the party. Every new way leads over a call that has changed, so it is enough to look at
   * what these reach.
   */
  #noteChanges(): Party[] {
    this.#dependence.forget();
    const { parties, order } = this.#members;
    const changed = order.takeChanges();
    if (!parties.hasBlocked) return [];
    const unblocked = new Set<Party>(changed === undefined ? parties.blocked : []);
    for (const call of changed ?? [])
      if (order.get(call.call) !== call || hasHadTurn(call))
        for (const party of parties.blockedBy(call)) unblocked.add(party);
    if (changed !== undefined && changed.length > 0)
      for (const party of this.#dependence.reachedFrom(changed)) if (parties.isBlocked(party)) unblocked.add(party);
    for (const party of unblocked) parties.unblock(party);
    return [...unblocked];
  }

  /** Says who is unblocked by it. */
  #reserve(party: Party, devices: readonly string[]): Party[] {
    const { parties, order } = this.#members;
    parties.move(party, "preparing");
    parties.hold(party, devices);
    for (const { call } of party.members.values()) order.changed(call);
    const unblocked = this.#noteChanges();
    for (const other of parties.waitingFor(devices)) {
      const isEarlier = other.arrival < party.arrival;
      const isBefore = this.#compare(other, party) < 0;
      if (!(isEarlier || isBefore) || !this.#mayGo(other)) continue;
      if (isEarlier) parties.passedOver(other);
      if (isBefore) parties.missed(other, devices);
    }
    return unblocked;
  }

  /** A swap has ended: it matters to whoever has reserved one of these devices. */
  swapEnded(devices: readonly string[]): LockEffect[] {
    const out: LockEffect[] = [];
    for (const party of new Set(devices.map((device) => this.#members.parties.holders.get(device))))
      if (party?.state === "preparing") this.#prepare(party, out);
    return this.run(out);
  }

  /** Memory or a worker is gone: it matters to everybody who is being prepared. */
  prepareAll(out: LockEffect[]): LockEffect[] {
    for (const party of [...this.#members.parties.in("preparing")]) this.#prepare(party, out);
    return this.run(out);
  }

  /** Takes the next steps towards a grant: offload who is in the way, onload who is not loaded, grant. */
  #prepare(party: Party, out: LockEffect[]): void {
    if (party.isCancelled) {
      this.#members.endCancelled(party);
      return;
    }
    const { wants } = party;
    const excess = this.#members.residency.excess(wants);
    if (excess) {
      for (const member of [...party.members.values()]) this.#members.refuse(member, outOfMemory(wants, excess), out);
      return;
    }
    if (!this.#makeRoom(wants, out)) return;
    for (const { worker, parts } of wants) {
      const missing = parts.filter((part) => !part.isLoaded);
      if (worker.swap !== undefined || missing.length === 0) continue;
      if (worker.devices.length === 0) for (const part of missing) part.isLoaded = true;
      else this.#swap("onload", { worker, parts: missing }, out);
    }
    // MT3.
    if (wants.some(({ worker, parts }) => worker.swap !== undefined || parts.some((part) => !part.isLoaded))) return;
    this.#members.parties.move(party, "held");
    party.reclaims = false;
    party.numBypassed = 0;
    party.missed.clear();
    for (const member of party.members.values()) {
      if (member.state !== "asking") continue;
      this.#members.renew(member);
      this.#members.answer(member, out);
    }
  }

  /** Offloads who is in the way; true when nobody is, any more. */
  #makeRoom(wants: readonly Want[], out: LockEffect[]): boolean {
    const room = this.#members.residency.roomFor(wants);
    if (room.fits) return true;
    for (const leaving of room.offload) this.#swap("offload", leaving, out);
    return false;
  }

  #swap(type: "onload" | "offload", { worker, parts }: Want, out: LockEffect[]): void {
    this.#members.residency.startSwap(worker, type, parts);
    const tags = parts.flatMap(({ tag }) => tag ?? []);
    out.push({ type, worker: worker.worker, devices: worker.devices, ...(tags.length > 0 && { tags }) });
  }

  /** Whoever needs that worker's devices is refused with the cause. */
  swapFailed(worker: WorkerState, method: "onload" | "offload", cause: unknown): LockEffect[] {
    const out: LockEffect[] = [];
    const reason = cause instanceof Error ? cause.message : String(cause);
    const message = `'${worker.worker}' could not ${method}: ${reason}`;
    for (const party of [...this.#members.parties.in("preparing")]) {
      if (!worker.devices.some((device) => party.holds.has(device))) continue;
      const error = new TreadleError("call.failed", message, { cause, origin: { worker: worker.worker, method } });
      for (const member of [...party.members.values()]) this.#members.refuse(member, error, out);
    }
    return this.prepareAll(out);
  }
}
