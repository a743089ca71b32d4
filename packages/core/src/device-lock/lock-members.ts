/** Who asks for devices and who has them: members, their parties and their tokens. The lock's state machine drives it. */
import type { TreadleError } from "@treadle/contracts";
import type { CallOrder, CallRecord } from "./call-order.ts";
import type { LockEffect } from "./lock-messages.ts";
import { type Member, Party } from "./lock-party.ts";
import type { PartyTable } from "./party-table.ts";
import type { ResidencyTable } from "./residency.ts";

export class LockMembers {
  readonly order: CallOrder;
  readonly parties: PartyTable;
  readonly residency: ResidencyTable;
  readonly byCall = new Map<string, Member>();
  /** lent, and a member has asked again */
  readonly asked = new Set<Party>();
  readonly #byToken = new Map<number, Member>();
  #lastToken = 0;
  #lastArrival = 0;

  constructor(order: CallOrder, parties: PartyTable, residency: ResidencyTable) {
    this.order = order;
    this.parties = parties;
    this.residency = residency;
  }

  nextArrival(): number {
    this.#lastArrival += 1;
    return this.#lastArrival;
  }

  /** Undefined for a token that was revoked. */
  withToken(token: number): Member | undefined {
    return this.#byToken.get(token);
  }

  /** L3. */
  revoke(member: Member): void {
    this.#byToken.delete(member.token);
  }

  /** The party that a call asks in: its gang's where that still gathers, else its own. */
  partyFor(call: CallRecord): Party {
    if (call.gang !== undefined) {
      for (const other of this.order.gangOf(call)) {
        const party = this.byCall.get(other.call)?.party;
        // One that is being called off gathers again; a call that had left it comes back, or the two would wait apart.
        if (party?.state === "gathering" || party?.isCancelled) return party;
      }
    }
    const party = new Party(this.nextArrival());
    this.parties.add(party);
    return party;
  }

  /** A gang waits for devices once every open call of it has asked. */
  gather(party: Party): void {
    const first = party.members.values().next().value;
    if (party.state !== "gathering" || !first) return;
    if (this.order.gangSizeOf(first.call) > party.members.size) return;
    for (const call of this.order.gangOf(first.call)) if (!party.members.has(call.call)) return;
    this.parties.move(party, "waiting");
  }

  /** Removes a member and frees what that frees. Its requests are not answered. */
  drop(member: Member): void {
    const { party, call, worker } = member;
    if (member.state !== "asking") call.numTurns += 1;
    call.isHolding = false;
    call.isWaiting = false;
    call.hasLent = false;
    this.order.changed(call);
    this.byCall.delete(call.call);
    this.#byToken.delete(member.token);
    if (party.state === "preparing") {
      party.isCancelled = true;
      this.endCancelled(party);
      return;
    }
    this.parties.removeMember(party, call.call);
    if (party.members.size === 0) {
      this.parties.delete(party);
      return;
    }
    const kept = new Set(party.devices);
    for (const device of worker.devices) if (!kept.has(device)) this.parties.free(party, device);
    if (party.state === "held" && !party.has("active")) this.lendOut(party);
  }

  /**
   * A member gave up while its party was being prepared. The devices stay reserved until no onload is under way, since
   * nobody else may load there meanwhile; then the remaining members ask again from the start.
   */
  endCancelled(party: Party): void {
    if (party.workers.some((worker) => worker.swap?.type === "onload")) return;
    for (const member of [...party.members.values()]) {
      if (this.byCall.get(member.call.call) !== member) this.parties.removeMember(party, member.call.call);
    }
    party.isCancelled = false;
    this.parties.freeAll(party);
    this.parties.move(party, party.reclaims ? "waiting" : "gathering");
    if (party.members.size === 0) this.parties.delete(party);
  }

  /** Nobody of the party computes: others may use its devices. */
  lendOut(party: Party): void {
    this.parties.freeAll(party);
    party.reclaims = true;
    this.parties.move(party, "lent");
    if (party.has("asking")) this.asked.add(party);
  }

  /** L3: a token higher than all before. */
  renew(member: Member): void {
    this.#lastToken += 1;
    member.token = this.#lastToken;
    this.#byToken.set(member.token, member);
    member.state = "active";
    member.call.isWaiting = false;
    member.call.isHolding = true;
    this.order.changed(member.call);
    this.residency.touch(member.worker);
  }

  answer(member: Member, out: LockEffect[]): void {
    const { call, worker, token } = member;
    for (const request of member.requests) {
      member.count += 1;
      out.push({ type: "grant", request, call: call.call, worker: worker.worker, token });
    }
    member.requests = [];
  }

  refuse(member: Member, error: TreadleError, out: LockEffect[]): void {
    // One that gave up during an onload stays in its party until the onload is over; its call may have asked anew.
    if (this.byCall.get(member.call.call) !== member) return;
    for (const request of member.requests) out.push({ type: "refuse", request, call: member.call.call, error });
    this.drop(member);
  }
}
