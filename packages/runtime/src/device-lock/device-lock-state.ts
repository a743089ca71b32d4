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
 * - L2 Producers go before consumers (`call-order.ts`). Among those that may go: whoever was passed over `maxBypass`
 *   times, then loans that are reclaimed, then program order, then arrival. One passed over so often also keeps the
 *   others off its devices, so nobody starves.
 * - L3 Every grant carries a token higher than all before. Death, release and loan revoke it; a revoked token is refused.
 * - L4 A grant follows the `onloaded` of its worker. Residents are offloaded only when the next holder does not fit
 *   beside them: least recently used first, and none whose memory is not needed.
 * - L5 Locks nest per call: one token, as many releases as grants. A wait longer than its limit is refused with the chain of
 *   who waits for whom (`wait-for.ts`).
 */
import { TreadleError } from "@treadle/contracts";
import { CallOrder, type CallRecord, streamKey } from "./call-order.ts";
import { Dependence } from "./dependence.ts";
import type {
  AcquireInput,
  CallInput,
  DeviceInput,
  LockEffect,
  LockSnapshot,
  RequestId,
  StreamRef,
  WorkerInput,
} from "./lock-messages.ts";
import { type Member, Party } from "./lock-party.ts";
import { lockEdges, lockSnapshot, lockTimeout, outOfMemory, staleToken } from "./lock-reports.ts";
import { PartyTable } from "./party-table.ts";
import { ResidencyTable, type WorkerState } from "./residency.ts";
import type { WaitEdge } from "./wait-for.ts";

export type DeviceLockOptions = {
  readonly devices: readonly DeviceInput[];
  /** Default limit of a wait; none when absent. */
  readonly timeoutMs?: number | undefined;
  /** How often a waiting party may be passed over on its devices by later arrivals; 8 when absent. */
  readonly maxBypass?: number | undefined;
};

export class DeviceLockState {
  readonly #timeoutMs: number;
  readonly #maxBypass: number;
  readonly #residency = new ResidencyTable();
  readonly #order = new CallOrder();
  readonly #parties: PartyTable;
  readonly #dependence: Dependence;
  /** lent, and a member has asked again */
  readonly #asked = new Set<Party>();
  readonly #members = new Map<string, Member>();
  readonly #tokens = new Map<number, Member>();
  #lastToken = 0;
  #lastArrival = 0;

  constructor(options: DeviceLockOptions) {
    this.#timeoutMs = options.timeoutMs ?? Number.POSITIVE_INFINITY;
    this.#maxBypass = options.maxBypass ?? 8;
    this.#parties = new PartyTable(this.#maxBypass);
    this.#dependence = new Dependence({
      order: this.#order,
      members: this.#members,
      holders: this.#parties.holders,
    });
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

  /** What the worker occupies on each of its devices while loaded, as measured. Counts from the next grant on. */
  reportMemory(input: { readonly worker: string; readonly residentBytes: number }): void {
    const worker = this.#residency.get(input.worker);
    if (worker) worker.residentBytes = input.residentBytes;
  }

  openCall(input: CallInput): void {
    this.#order.open(input, this.#residency.get(input.worker)?.devices ?? []);
  }

  /** Ends a call: what it holds is freed, what it asked for is forgotten, and its consumers no longer wait for it. */
  closeCall(input: { readonly call: string }): LockEffect[] {
    const call = this.#order.get(input.call);
    if (!call) return [];
    const member = this.#members.get(call.call);
    if (member) this.#drop(member);
    this.#order.close(call);
    return this.#schedule([]);
  }

  /** The call has put something into one of its streams. */
  enqueued(input: { readonly call: string }): LockEffect[] {
    const call = this.#order.get(input.call);
    if (!call || call.hasEnqueued) return [];
    call.hasEnqueued = true;
    return this.#schedule([]);
  }

  /**
   * The call waits in `take` for data, or in `put` for credit. A holder lends first: what it still holds while it waits
   * looks like part of a circle.
   */
  park(input: { readonly call: string; readonly stream: StreamRef; readonly on: "take" | "put" }): LockEffect[] {
    const call = this.#order.get(input.call);
    if (!call) return [];
    call.parked = { stream: streamKey(input.stream), on: input.on };
    return this.#schedule([]);
  }

  unpark(input: { readonly call: string }): void {
    const call = this.#order.get(input.call);
    if (call) call.parked = undefined;
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
    for (const member of this.#members.values()) {
      if (!member.requests.includes(input.request)) continue;
      member.requests = member.requests.filter((request) => request !== input.request);
      if (member.requests.length === 0 && member.state === "asking") this.#drop(member);
      return this.#schedule([]);
    }
    return [];
  }

  /** Undoes one grant; the last one frees the devices. Valid for lent ones too, which it gives up. */
  release(input: { readonly token: number }): LockEffect[] {
    const member = this.#tokens.get(input.token);
    if (!member) return [this.#stale(input.token)];
    member.count -= 1;
    if (member.count > 0) return [];
    if (member.state !== "asking") this.#drop(member);
    return this.#schedule([]);
  }

  /** L3: the reason why a token is not valid, or undefined. */
  validate(token: number): TreadleError | undefined {
    return this.#tokens.get(token)?.state === "active" ? undefined : staleToken(token);
  }

  /**
   * Lets others use the devices while the holder waits for data or credit. Its token is void from here on. A gang's
   * devices are free when every member has lent or released, and come back to all of it once every member has asked;
   * a member that waits for nobody outside the gang is not waited for.
   */
  lend(input: { readonly token: number }): LockEffect[] {
    const member = this.#tokens.get(input.token);
    if (member?.state !== "active") return [this.#stale(input.token)];
    member.state = "lent";
    member.call.isHolding = false;
    if (!member.party.has("active")) this.#lendOut(member.party);
    return this.#schedule([]);
  }

  onloaded(input: { readonly worker: string }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.residency !== "onloading") return [];
    worker.residency = "loaded";
    return this.#prepareOn(worker.devices);
  }

  offloaded(input: { readonly worker: string }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.residency !== "offloading") return [];
    worker.residency = "unloaded";
    return this.#prepareOn(worker.devices);
  }

  /** The worker is not loaded; whoever was to be granted is refused with the cause. */
  onloadFailed(input: { readonly worker: string; readonly error: unknown }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.residency !== "onloading") return [];
    worker.residency = "unloaded";
    return this.#swapFailed(worker, "onload", input.error);
  }

  /** The worker is still loaded; everybody who waited for its memory is refused with the cause. */
  offloadFailed(input: { readonly worker: string; readonly error: unknown }): LockEffect[] {
    const worker = this.#residency.get(input.worker);
    if (worker?.residency !== "offloading") return [];
    worker.residency = "loaded";
    return this.#swapFailed(worker, "offload", input.error);
  }

  /** L3: frees what the worker held and the memory it occupied. Its calls stay open until `closeCall`. */
  workerDied(input: { readonly worker: string }): LockEffect[] {
    for (const call of this.#order.calls) {
      if (call.worker !== input.worker) continue;
      call.parked = undefined;
      const member = this.#members.get(call.call);
      if (member) this.#drop(member);
    }
    const worker = this.#residency.get(input.worker);
    if (worker) worker.residency = "unloaded";
    return this.#prepareAll([]);
  }

  /** L5: refuses every wait that has outlived its limit. `edges` says what workers wait for outside the lock. */
  tick(input: { readonly nowMs: number; readonly edges?: readonly WaitEdge[] | undefined }): LockEffect[] {
    const overdue = [...this.#members.values()].filter((member) => {
      return (
        member.requests.length > 0 && member.state === "asking" && input.nowMs - member.sinceMs >= member.timeoutMs
      );
    });
    if (overdue.length === 0) return [];
    const edges = [...this.edges(), ...(input.edges ?? [])];
    const out: LockEffect[] = [];
    for (const member of overdue) this.#refuse(member, lockTimeout(member, edges), out);
    return this.#schedule(out);
  }

  /** Who waits for whom because of the lock. */
  edges(): WaitEdge[] {
    return lockEdges(this.#members.values(), this.#parties.holders, this.#order, this.#residency);
  }

  snapshot(): LockSnapshot {
    return lockSnapshot(this.#members.values(), this.#parties.holders, this.#residency);
  }

  // Asking and giving up.

  #ask({ request, call: id, nowMs, timeoutMs }: AcquireInput, isReclaim: boolean): LockEffect[] {
    const call = this.#order.get(id);
    const worker = call && this.#residency.get(call.worker);
    if (!call || !worker) {
      const error = new TreadleError("call.cancelled", `call '${id}' asked for devices after it had ended`);
      return [{ type: "refuse", request, call: id, error }];
    }
    const out: LockEffect[] = [];
    const known = this.#members.get(id);
    if (known) {
      // A reclaimed loan was counted when it was first granted; its second grant must not count again.
      if (isReclaim) known.count -= 1;
      known.requests.push(request);
      if (known.state === "lent") {
        this.#tokens.delete(known.token);
        known.state = "asking";
        known.sinceMs = nowMs;
        call.isWaiting = true;
        if (known.party.state === "held") this.#renew(known);
        else if (known.party.state === "lent") this.#asked.add(known.party);
      }
      if (known.state === "active") this.#answer(known, out);
      return this.#schedule(out);
    }
    const party = this.#gatheringPartyOf(call);
    const limit = timeoutMs ?? this.#timeoutMs;
    const member: Member = {
      call,
      worker,
      party,
      state: "asking",
      requests: [request],
      count: 0,
      token: 0,
      sinceMs: nowMs,
      timeoutMs: limit,
    };
    this.#parties.addMember(party, member);
    this.#members.set(id, member);
    call.isWaiting = true;
    const excess = this.#residency.excess(party.workers);
    if (excess) this.#refuse(member, outOfMemory(party.workers, excess), out);
    return this.#schedule(out);
  }

  #gatheringPartyOf(call: CallRecord): Party {
    if (call.gang !== undefined) {
      for (const other of this.#order.gangOf(call)) {
        const party = this.#members.get(other.call)?.party;
        // One that is being called off gathers again; a call that had left it comes back, or the two would wait apart.
        if (party?.state === "gathering" || party?.isCancelled) return party;
      }
    }
    this.#lastArrival += 1;
    const party = new Party(this.#lastArrival);
    this.#parties.add(party);
    return party;
  }

  /** A gang waits for devices once every open call of it has asked. */
  #gather(party: Party): void {
    const first = party.members.values().next().value;
    if (party.state !== "gathering" || !first) return;
    for (const call of this.#order.gangOf(first.call)) if (!party.members.has(call.call)) return;
    this.#parties.move(party, "waiting");
  }

  /** Removes a member and frees what that frees. Its requests are not answered. */
  #drop(member: Member): void {
    const { party, call, worker } = member;
    if (member.state !== "asking") call.numTurns += 1;
    call.isHolding = false;
    call.isWaiting = false;
    this.#members.delete(call.call);
    this.#tokens.delete(member.token);
    if (party.state === "preparing") {
      party.isCancelled = true;
      this.#endCancelled(party);
      return;
    }
    this.#parties.removeMember(party, call.call);
    if (party.members.size === 0) {
      this.#parties.delete(party);
      return;
    }
    const kept = new Set(party.devices);
    for (const device of worker.devices) if (!kept.has(device)) this.#parties.free(party, device);
    if (party.state === "held" && !party.has("active")) this.#lendOut(party);
  }

  /**
   * A member gave up while its party was being prepared. The devices stay reserved until no onload is under way, since
   * nobody else may load there meanwhile; then the remaining members ask again from the start.
   */
  #endCancelled(party: Party): void {
    if (party.workers.some((worker) => worker.residency === "onloading")) return;
    for (const member of [...party.members.values()]) {
      if (this.#members.get(member.call.call) !== member) this.#parties.removeMember(party, member.call.call);
    }
    party.isCancelled = false;
    this.#parties.freeAll(party);
    this.#parties.move(party, party.reclaims ? "waiting" : "gathering");
    if (party.members.size === 0) this.#parties.delete(party);
  }

  #lendOut(party: Party): void {
    this.#parties.freeAll(party);
    party.reclaims = true;
    this.#parties.move(party, "lent");
    if (party.has("asking")) this.#asked.add(party);
  }

  /**
   * A gang's ranks meet in collectives, so one that has its data must leave the devices to the producers of those that
   * have none yet. Those that wait for no open call, or for this very gang, would be waited for in vain.
   */
  #mayReturn(party: Party): boolean {
    if (!party.has("asking")) return false;
    for (const { call, state } of party.members.values()) {
      if (state !== "lent") continue;
      const suppliers = this.#order.suppliersOf(call);
      if (suppliers.size > 0 && !this.#dependence.anyReaches(suppliers, party)) return false;
    }
    return true;
  }

  /** In line for the second time: before others, but they can tell that it came after them. */
  #wait(party: Party): void {
    this.#lastArrival += 1;
    party.arrival = this.#lastArrival;
    this.#parties.move(party, "waiting");
  }

  // Scheduling (L2).

  #schedule(out: LockEffect[]): LockEffect[] {
    this.#dependence.forget();
    for (const party of [...this.#parties.in("gathering")]) this.#gather(party);
    for (const party of this.#asked) {
      if (party.state !== "lent" || !party.has("asking")) this.#asked.delete(party);
      else if (this.#mayReturn(party)) this.#wait(party);
    }
    // Most wait for a device that is held; only the others need to be put in order.
    const inLine = this.#parties.inLine();
    if (inLine.length > 1) {
      inLine.sort((a, b) => this.#rank(a) - this.#rank(b) || a.sequence - b.sequence || a.arrival - b.arrival);
    }
    const claimed = new Set<string>();
    const started: Party[] = [];
    for (const party of inLine) {
      const { devices } = party;
      const isFree = devices.every((device) => !this.#parties.holders.has(device) && !claimed.has(device));
      const isOverdue = party.numBypassed >= this.#maxBypass;
      if ((!isFree && !isOverdue) || !this.#mayGo(party, devices)) continue;
      if (isFree) {
        this.#reserve(party, devices);
        started.push(party);
      } else for (const device of devices) claimed.add(device);
    }
    // One plan for all that start together: what must leave for one may be all that another needs (L4).
    if (started.length > 1)
      this.#makeRoom(
        started.flatMap((party) => party.workers),
        out,
      );
    for (const party of started) this.#prepare(party, out);
    return out;
  }

  #rank(party: Party): number {
    if (party.numBypassed >= this.#maxBypass) return 0;
    return party.reclaims ? 1 : 2;
  }

  #mayGo(party: Party, devices: readonly string[]): boolean {
    if (party.reclaims) return true;
    for (const { call } of party.members.values()) {
      for (const first of this.#order.predecessors(call, devices))
        if (!this.#dependence.reaches(first.call, party)) return false;
    }
    return true;
  }

  #reserve(party: Party, devices: readonly string[]): void {
    this.#parties.move(party, "preparing");
    this.#parties.hold(party, devices);
    this.#dependence.forget();
    for (const other of this.#parties.waitingFor(devices))
      if (other.arrival < party.arrival && this.#mayGo(other, other.devices)) this.#parties.passedOver(other);
  }

  // Swapping (L4).

  /** A swap has ended: it matters to whoever has reserved one of these devices. */
  #prepareOn(devices: readonly string[]): LockEffect[] {
    const out: LockEffect[] = [];
    for (const party of new Set(devices.map((device) => this.#parties.holders.get(device))))
      if (party?.state === "preparing") this.#prepare(party, out);
    return this.#schedule(out);
  }

  #prepareAll(out: LockEffect[]): LockEffect[] {
    for (const party of [...this.#parties.in("preparing")]) this.#prepare(party, out);
    return this.#schedule(out);
  }

  /** Takes the next steps towards a grant: offload who is in the way, onload who is not loaded, grant. */
  #prepare(party: Party, out: LockEffect[]): void {
    const { workers } = party;
    if (party.isCancelled) {
      this.#endCancelled(party);
      return;
    }
    const excess = this.#residency.excess(workers);
    if (excess) {
      for (const member of [...party.members.values()]) this.#refuse(member, outOfMemory(party.workers, excess), out);
      return;
    }
    if (!this.#makeRoom(workers, out)) return;
    for (const worker of workers) {
      if (worker.residency !== "unloaded") continue;
      if (worker.devices.length === 0) worker.residency = "loaded";
      else {
        worker.residency = "onloading";
        out.push({ type: "onload", worker: worker.worker, devices: worker.devices });
      }
    }
    if (workers.some((worker) => worker.residency !== "loaded")) return;
    this.#parties.move(party, "held");
    party.reclaims = false;
    party.numBypassed = 0;
    for (const member of party.members.values()) {
      if (member.state !== "asking") continue;
      this.#renew(member);
      this.#answer(member, out);
    }
  }

  #renew(member: Member): void {
    this.#lastToken += 1;
    member.token = this.#lastToken;
    this.#tokens.set(member.token, member);
    member.state = "active";
    member.call.isWaiting = false;
    member.call.isHolding = true;
    this.#residency.touch(member.worker);
  }

  #answer(member: Member, out: LockEffect[]): void {
    const { call, worker, token } = member;
    for (const request of member.requests) {
      member.count += 1;
      out.push({ type: "grant", request, call: call.call, worker: worker.worker, token });
    }
    member.requests = [];
  }

  /** Offloads who is in the way; true when nobody is, any more. */
  #makeRoom(workers: readonly WorkerState[], out: LockEffect[]): boolean {
    const room = this.#residency.roomFor(workers);
    if (room.fits) return true;
    for (const worker of room.offload) {
      worker.residency = "offloading";
      out.push({ type: "offload", worker: worker.worker, devices: worker.devices });
    }
    return false;
  }

  #swapFailed(worker: WorkerState, method: "onload" | "offload", cause: unknown): LockEffect[] {
    const out: LockEffect[] = [];
    const reason = cause instanceof Error ? cause.message : String(cause);
    const message = `'${worker.worker}' could not ${method}: ${reason}`;
    for (const party of [...this.#parties.in("preparing")]) {
      if (!worker.devices.some((device) => party.holds.has(device))) continue;
      const error = new TreadleError("call.failed", message, { cause, origin: { worker: worker.worker, method } });
      for (const member of [...party.members.values()]) this.#refuse(member, error, out);
    }
    return this.#prepareAll(out);
  }

  #refuse(member: Member, error: TreadleError, out: LockEffect[]): void {
    // One that gave up during an onload stays in its party until the onload is over; its call may have asked anew.
    if (this.#members.get(member.call.call) !== member) return;
    for (const request of member.requests) out.push({ type: "refuse", request, call: member.call.call, error });
    this.#drop(member);
  }

  #stale(token: number): LockEffect {
    return { type: "stale", token, error: staleToken(token) };
  }
}
