/**
 * All parties and who holds which device, indexed by what may happen next: the lock looks at few parties however many
 * wait. A party's state and members change through here alone, or the indices go stale.
 */
import type { CallRecord } from "./call-order.ts";
import type { Member, Party, PartyState } from "./lock-party.ts";

export class PartyTable {
  readonly #maxBypass: number;
  readonly #inState: Readonly<Record<PartyState, Set<Party>>> = {
    gathering: new Set(),
    waiting: new Set(),
    preparing: new Set(),
    held: new Set(),
    lent: new Set(),
  };
  readonly #holders = new Map<string, Party>();
  readonly #waitingFor = new Map<string, Set<Party>>();
  /** by waiting party, how many of its devices somebody holds */
  readonly #numHeld = new Map<Party, number>();
  readonly #free = new Set<Party>();
  readonly #overdue = new Set<Party>();
  /** Waiting parties that may not go before a call has had its turn, and such parties by that call. */
  readonly #blockedBy = new Map<Party, CallRecord>();
  readonly #blocks = new Map<CallRecord, Set<Party>>();
  readonly #line = new Set<Party>();

  constructor(maxBypass: number) {
    this.#maxBypass = maxBypass;
  }

  get holders(): ReadonlyMap<string, Party> {
    return this.#holders;
  }

  /** An overdue party that keeps others off a device of this one, and the device. */
  keeperOf(party: Party): { readonly keeper: Party; readonly device: string } | undefined {
    for (const keeper of this.#overdue) {
      if (keeper === party || this.isBlocked(keeper)) continue;
      const device = party.devices.find((each) => keeper.devices.includes(each));
      if (device !== undefined) return { keeper, device };
    }
    return undefined;
  }

  in(state: PartyState): ReadonlySet<Party> {
    return this.#inState[state];
  }

  /** Waiting parties whose devices nobody holds, and those that were passed over too often, unless they are blocked. */
  get inLine(): ReadonlySet<Party> {
    return this.#line;
  }

  /** The party must wait for the call, which does not depend on it: until that changes nobody looks at it again. */
  block(party: Party, by: CallRecord): void {
    this.#blockedBy.set(party, by);
    const known = this.#blocks.get(by);
    if (known) known.add(party);
    else this.#blocks.set(by, new Set([party]));
    this.#line.delete(party);
  }

  unblock(party: Party): void {
    const by = this.#blockedBy.get(party);
    if (by === undefined) return;
    this.#blockedBy.delete(party);
    const known = this.#blocks.get(by);
    known?.delete(party);
    if (known?.size === 0) this.#blocks.delete(by);
    this.#queue(party);
  }

  get blocked(): Iterable<Party> {
    return this.#blockedBy.keys();
  }

  get hasBlocked(): boolean {
    return this.#blockedBy.size > 0;
  }

  isBlocked(party: Party): boolean {
    return this.#blockedBy.has(party);
  }

  blockedBy(call: CallRecord): Iterable<Party> {
    return this.#blocks.get(call) ?? [];
  }

  waitingFor(devices: readonly string[]): Set<Party> {
    const found = new Set<Party>();
    for (const device of devices) for (const party of this.#waitingFor.get(device) ?? []) found.add(party);
    return found;
  }

  add(party: Party): void {
    this.#enter(party);
  }

  /** Frees what it holds. */
  delete(party: Party): void {
    this.freeAll(party);
    this.#leave(party);
  }

  move(party: Party, state: PartyState): void {
    this.#leave(party);
    party.state = state;
    this.#enter(party);
  }

  addMember(party: Party, member: Member): void {
    this.#leave(party);
    party.members.set(member.call.call, member);
    party.membersChanged();
    this.#enter(party);
  }

  removeMember(party: Party, call: string): void {
    this.#leave(party);
    party.members.delete(call);
    party.membersChanged();
    this.#enter(party);
  }

  hold(party: Party, devices: readonly string[]): void {
    for (const device of devices) {
      if (!this.#holders.has(device)) this.#count(device, 1);
      this.#holders.get(device)?.holds.delete(device);
      this.#holders.set(device, party);
      party.holds.add(device);
    }
  }

  free(party: Party, device: string): void {
    if (this.#holders.get(device) !== party) return;
    this.#holders.delete(device);
    party.holds.delete(device);
    this.#count(device, -1);
  }

  freeAll(party: Party): void {
    for (const device of party.holds) this.free(party, device);
  }

  passedOver(party: Party): void {
    party.numBypassed += 1;
    this.#note(party);
  }

  missed(party: Party, devices: readonly string[]): void {
    for (const device of devices) if (party.devices.includes(device)) party.missed.add(device);
    this.#note(party);
  }

  #note(party: Party): void {
    if (party.isOverdue(this.#maxBypass)) this.#overdue.add(party);
    this.#queue(party);
  }

  #enter(party: Party): void {
    this.#inState[party.state].add(party);
    if (party.state !== "waiting") return;
    let numHeld = 0;
    for (const device of party.devices) {
      if (this.#holders.has(device)) numHeld++;
      const waiting = this.#waitingFor.get(device);
      if (waiting) waiting.add(party);
      else this.#waitingFor.set(device, new Set([party]));
    }
    this.#numHeld.set(party, numHeld);
    if (numHeld === 0) this.#free.add(party);
    this.#note(party);
  }

  #leave(party: Party): void {
    this.#inState[party.state].delete(party);
    if (party.state !== "waiting") return;
    for (const device of party.devices) this.#waitingFor.get(device)?.delete(party);
    this.#numHeld.delete(party);
    this.#free.delete(party);
    this.#overdue.delete(party);
    this.unblock(party);
    this.#queue(party);
  }

  #queue(party: Party): void {
    if ((this.#free.has(party) || this.#overdue.has(party)) && !this.#blockedBy.has(party)) this.#line.add(party);
    else this.#line.delete(party);
  }

  #count(device: string, change: 1 | -1): void {
    for (const party of this.#waitingFor.get(device) ?? []) {
      const numHeld = (this.#numHeld.get(party) as number) + change;
      this.#numHeld.set(party, numHeld);
      if (numHeld === 0) this.#free.add(party);
      else this.#free.delete(party);
      this.#queue(party);
    }
  }
}
