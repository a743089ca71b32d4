/**
 * The device lock's state machine: one for the cluster, in the runner's process. It owns who holds which device and who
 * is loaded where, and never acts: each input returns the effects that the shell sends, and time arrives with inputs.
 *
 * A call asks for its worker's full device set (`acquire`), is granted a token once the worker is loaded, and gives the
 * token back (`release`). A call that waits for data or credit says so (`park`), and if it holds devices it lends
 * them (`lend`) and asks for them again (`reclaim`); without the loan, a holder that waits for a producer on the same
 * device would wait for ever.
 *
 * - L1 A device is held by, or being prepared for, one party at a time: a call, or a gang. A set is reserved as a whole
 *   or not at all, so nobody holds one device and waits for another, and crossed sets cannot deadlock. Residents that
 *   fit in memory together stay loaded.
 * - L2 Producers go before consumers (`call-order.ts`). Among those that may go: whoever is overdue, then
 *   loans that are reclaimed, then program order, then arrival. A party is overdue when it was passed over `maxBypass`
 *   times, or when each of its devices has gone to a party behind it, as the others were held. It keeps other parties off its
 *   devices, so it need not wait until all of them are free at one instant, and none starves. It does not keep off a party
 *   that a holder of these devices waits for: a holder that lends nothing would wait in vain.
 * - L3 Every grant carries a token higher than all before. Death, release and loan revoke it; a revoked token is refused.
 * - L4 A grant follows the `onloaded` of its worker. Residents are offloaded only when the next holder does not fit
 *   beside them: least recently used first, or tag by tag the cheapest (MT2), and none whose memory is not needed (MT1). What
 *   an offload leaves on the devices, such as contexts and buffers, counts until its process ends.
 * - L5 Locks nest per call: one token, as many releases as grants. A wait longer than its limit is refused with the chain of
 *   who waits for whom (`wait-for.ts`).
 */
import { type TagMemory, TreadleError } from "@treadle/contracts";
import { CallOrder, streamKey } from "./call-order.ts";
import { LockLease } from "./lock-lease.ts";
import { LockMembers } from "./lock-members.ts";
import type {
  AcquireInput,
  CallInput,
  DeviceInput,
  LeaseInput,
  LockEffect,
  LockSnapshot,
  RequestId,
  StreamRef,
  WorkerInput,
} from "./lock-messages.ts";
import type { Member } from "./lock-party.ts";
import { leaseEdges, lockEdges, lockSnapshot, lockTimeout, outOfMemory, staleToken } from "./lock-reports.ts";
import { LockSchedule } from "./lock-schedule.ts";
import { PartyTable } from "./party-table.ts";
import { ResidencyTable } from "./residency.ts";
import type { WaitEdge } from "./wait-for.ts";

export type DeviceLockOptions = {
  readonly devices: readonly DeviceInput[];
  /** Default limit of a wait; none when absent. */
  readonly timeoutMs?: number | undefined;
  /** How often a waiting party may be passed over on its devices by later arrivals; 8 when absent. */
  readonly maxBypass?: number | undefined;
  /** Its devices are shared with other runs: it reserves none without a lease (`lock-lease.ts`). */
  readonly isLeased?: boolean | undefined;
};

const defaultMaxBypass = 8;

export class DeviceLockState {
  readonly #timeoutMs: number;
  readonly #residency = new ResidencyTable();
  readonly #order = new CallOrder();
  readonly #parties: PartyTable;
  readonly #members: LockMembers;
  readonly #lease: LockLease;
  readonly #schedule: LockSchedule;

  constructor(options: DeviceLockOptions) {
    this.#timeoutMs = options.timeoutMs ?? Number.POSITIVE_INFINITY;
    const maxBypass = options.maxBypass ?? defaultMaxBypass;
    this.#parties = new PartyTable(maxBypass);
    this.#members = new LockMembers(this.#order, this.#parties, this.#residency);
    this.#lease = new LockLease(options.isLeased === true);
    this.#schedule = new LockSchedule(this.#members, this.#lease, maxBypass);
    for (const device of options.devices) this.#residency.addDevice(device);
  }

  /** Registers a device of a node that joined. */
  addDevice(input: DeviceInput): void {
    this.#residency.addDevice(input);
  }

  /** Registers a worker, or, after `workerDied`, the process that replaces it. */
  addWorker(input: WorkerInput): void {
    const unknown = input.devices.find((device) => !this.#residency.hasDevice(device));
    if (unknown !== undefined) {
      throw new TreadleError(
        "placement.impossible",
        `'${input.worker}' is placed on device '${unknown}', which is not in the cluster`,
      );
    }
    this.#residency.addWorker(input);
    for (const call of this.#order.calls) if (call.worker === input.worker) this.#order.move(call, input.devices);
  }

  /** What the worker occupies on each of its devices while loaded, where it is known, and by tag. Counts from the next grant on. */
  reportMemory(input: {
    readonly worker: string;
    readonly residentBytes: number | undefined;
    readonly tags?: readonly TagMemory[] | undefined;
  }): void {
    const worker = this.#residency.get(input.worker);
    if (worker) this.#residency.report(worker, input.residentBytes, input.tags);
  }

  openCall(input: CallInput): void {
    this.#order.open(input, this.#residency.get(input.worker)?.devices ?? []);
  }

  /** Ends a call: what it holds is freed, what it asked for is forgotten, and its consumers no longer wait for it. */
  closeCall(input: { readonly call: string }): LockEffect[] {
    const call = this.#order.get(input.call);
    if (!call) return [];
    const member = this.#members.byCall.get(call.call);
    if (member) this.#members.drop(member);
    this.#order.close(call);
    return this.#schedule.run([]);
  }

  /** The call has put something into one of its streams. */
  enqueued(input: { readonly call: string; readonly stream: StreamRef }): LockEffect[] {
    const call = this.#order.get(input.call);
    const stream = streamKey(input.stream);
    if (!call || call.enqueued.has(stream)) return [];
    call.enqueued.add(stream);
    this.#order.changed(call);
    return this.#schedule.run([]);
  }

  /**
   * The call waits in `take` for data, or in `put` for credit, besides all that it is parked on. A holder lends first: what it still holds while it waits
   * looks like part of a circle.
   */
  park(input: { readonly call: string; readonly stream: StreamRef; readonly on: "take" | "put" }): LockEffect[] {
    const call = this.#order.get(input.call);
    if (!call) return [];
    const stream = streamKey(input.stream);
    if (!call.parked.some((wait) => wait.stream === stream && wait.on === input.on))
      call.parked.push({ stream, on: input.on });
    this.#order.changed(call);
    return this.#schedule.run([]);
  }

  unpark(input: { readonly call: string }): void {
    const call = this.#order.get(input.call);
    call?.parked.splice(0);
  }

  acquire(input: AcquireInput): LockEffect[] {
    return this.#ask(input, false);
  }

  /** Asks for lent devices again: a grant with a new token, before anybody else who waits for them. */
  reclaim(input: AcquireInput): LockEffect[] {
    return this.#ask(input, true);
  }

  /** Withdraws a request that has not been granted. */
  cancel(input: { readonly request: RequestId }): LockEffect[] {
    for (const member of this.#members.byCall.values()) {
      if (!member.requests.includes(input.request)) continue;
      member.requests = member.requests.filter((request) => request !== input.request);
      if (member.requests.length === 0 && member.state === "asking") this.#members.drop(member);
      return this.#schedule.run([]);
    }
    return [];
  }

  /** Undoes one grant; the last one frees the devices. Valid for lent ones too, which it gives up. */
  release(input: { readonly token: number }): LockEffect[] {
    const member = this.#members.withToken(input.token);
    if (!member) return [this.#stale(input.token)];
    member.count -= 1;
    if (member.count > 0) return [];
    if (member.state !== "asking") this.#members.drop(member);
    return this.#schedule.run([]);
  }

  /** L3: the reason why a token is not valid, or undefined. */
  validate(token: number): TreadleError | undefined {
    return this.#members.withToken(token)?.state === "active" ? undefined : staleToken(token);
  }

  /**
   * Lets others use the devices while the holder waits for data or credit. Its token is void from here on. A gang's
   * devices are free when every member has lent or released, and come back to all of it once every member has asked;
   * a member that waits for nobody outside the gang is not waited for.
   */
  lend(input: { readonly token: number }): LockEffect[] {
    const member = this.#members.withToken(input.token);
    if (member?.state !== "active") return [this.#stale(input.token)];
    member.state = "lent";
    member.call.isHolding = false;
    member.call.hasLent = true;
    this.#order.changed(member.call);
    if (!member.party.has("active")) this.#members.lendOut(member.party);
    return this.#schedule.run([]);
  }

  /** What the pool of a run that shares its devices says. Waits for others are not the lock's: its limits begin again (L5). */
  lease(input: LeaseInput, nowMs: number): LockEffect[] {
    const out: LockEffect[] = [];
    if (input.type === "leased") {
      this.#lease.granted(input.lease);
      for (const member of this.#members.byCall.values()) if (member.state === "asking") member.sinceMs = nowMs;
    } else if (input.type === "lease-wanted") this.#lease.wanted(input.token, input.drains);
    else if (input.type === "lease-alone") this.#lease.isAlone(input.token);
    else this.#lease.share(input.token, this.#parties.holders, out);
    return this.#schedule.run(out);
  }

  /** Some that wait for devices wait for other runs. */
  get awaitsLease(): boolean {
    return this.#lease.isAwaited;
  }

  onloaded(input: { readonly worker: string }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.swap?.type !== "onload") return [];
    this.#residency.endSwap(worker, true);
    return this.#schedule.swapEnded(worker.devices);
  }

  /** `residualBytes`: what stays on each of its devices, loaded tags included; nothing when absent. */
  offloaded(input: { readonly worker: string; readonly residualBytes?: number | undefined }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.swap?.type !== "offload") return [];
    this.#residency.endSwap(worker, true, input.residualBytes);
    return this.#schedule.swapEnded(worker.devices);
  }

  /** The worker is not loaded; whoever was to be granted is refused with the cause. */
  onloadFailed(input: { readonly worker: string; readonly error: unknown }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.swap?.type !== "onload") return [];
    this.#residency.endSwap(worker, false);
    return this.#schedule.swapFailed(worker, "onload", input.error);
  }

  /** The worker is still loaded; everybody who waited for its memory is refused with the cause. */
  offloadFailed(input: { readonly worker: string; readonly error: unknown }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.swap?.type !== "offload") return [];
    this.#residency.endSwap(worker, false);
    return this.#schedule.swapFailed(worker, "offload", input.error);
  }

  /** L3: frees what the worker held and the memory it occupied. Its calls stay open until `closeCall`. */
  workerDied(input: { readonly worker: string }): LockEffect[] {
    for (const call of this.#order.calls) {
      if (call.worker !== input.worker) continue;
      call.parked.splice(0);
      const member = this.#members.byCall.get(call.call);
      if (member) this.#members.drop(member);
    }
    const worker = this.#residency.get(input.worker);
    if (worker) this.#residency.vacate(worker);
    return this.#schedule.prepareAll([]);
  }

  /** L5: refuses every wait that has outlived its limit. `edges` says what workers wait for outside the lock. */
  tick(input: { readonly nowMs: number; readonly edges?: (() => readonly WaitEdge[]) | undefined }): LockEffect[] {
    if (this.awaitsLease) return [];
    const overdue = [...this.#members.byCall.values()].filter((member) => {
      return (
        member.requests.length > 0 && member.state === "asking" && input.nowMs - member.sinceMs >= member.timeoutMs
      );
    });
    if (overdue.length === 0) return [];
    const edges = [...this.edges(), ...(input.edges?.() ?? [])];
    const out: LockEffect[] = [];
    // Who is refused waits no longer, so all errors are made first.
    const refusals = overdue.map((member) => {
      return { member, error: lockTimeout(member, edges, this.#parties.keeperOf(member.party)) };
    });
    for (const { member, error } of refusals) this.#members.refuse(member, error, out);
    return this.#schedule.run(out);
  }

  /** Who waits for whom because of the lock. */
  edges(): WaitEdge[] {
    if (this.awaitsLease) return leaseEdges(this.#members.byCall.values());
    return lockEdges(this.#members.byCall.values(), this.#parties.holders, this.#order, this.#residency);
  }

  snapshot(): LockSnapshot {
    return lockSnapshot(this.#members.byCall.values(), this.#parties.holders, this.#residency, this.#lease.shown());
  }

  #ask({ request, call: id, nowMs, timeoutMs, tags }: AcquireInput, isReclaim: boolean): LockEffect[] {
    const call = this.#order.get(id);
    const worker = call && this.#residency.get(call.worker);
    if (!call || !worker) {
      const error = new TreadleError("call.cancelled", `call '${id}' asked for devices after it had ended`);
      return [{ type: "refuse", request, call: id, error }];
    }
    const out: LockEffect[] = [];
    const known = this.#members.byCall.get(id);
    if (known) {
      // A reclaimed loan was counted when it was first granted; its second grant must not count again.
      if (isReclaim) known.count -= 1;
      known.requests.push(request);
      if (known.state === "lent") {
        this.#members.revoke(known);
        known.state = "asking";
        known.sinceMs = nowMs;
        call.isWaiting = true;
        call.hasLent = false;
        this.#order.changed(call);
        if (known.party.state === "held") this.#members.renew(known);
        else if (known.party.state === "lent") this.#members.asked.add(known.party);
      }
      if (known.state === "active") this.#members.answer(known, out);
      return this.#schedule.run(out);
    }
    const party = this.#members.partyFor(call);
    const limit = timeoutMs ?? this.#timeoutMs;
    const member: Member = {
      call,
      worker,
      party,
      tags,
      state: "asking",
      requests: [request],
      count: 0,
      token: 0,
      sinceMs: nowMs,
      timeoutMs: limit,
    };
    this.#parties.addMember(party, member);
    this.#members.byCall.set(id, member);
    call.isWaiting = true;
    // Members of another kind see more devices now, and so, perhaps, more calls before them.
    for (const each of party.members.values())
      if (each === member || each.call.kind !== call.kind) this.#order.changed(each.call);
    const excess = this.#residency.excess(party.wants);
    if (excess) this.#members.refuse(member, outOfMemory(party.wants, excess), out);
    return this.#schedule.run(out);
  }

  #stale(token: number): LockEffect {
    return { type: "stale", token, error: staleToken(token) };
  }
}
