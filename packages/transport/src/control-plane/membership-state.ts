/**
 * Who is there. Pure: told what the registry holds, which beats arrive and when, it answers with what changed.
 *
 * M1 a member is there from the first beat of the incarnation that its entry names, until it says goodbye, its entry goes,
 *    another incarnation takes its name, or it is silent for longer than the lease.
 * M2 for each member `joined` and `left` alternate, beginning with `joined`.
 * M3 time during which this process was cut off, or did not run, is nobody's silence: everyone has a full lease afterwards.
 * M4 nothing of an incarnation older than the entry's counts.
 * M5 names that only beats name are forgotten after a lease, and the oldest of them when they are many.
 */
import type { Member, MemberKind, MembershipChange } from "@treadle/contracts";

const maxNames = 10_000;

type Known = {
  entry: Member | undefined;
  /** the newest incarnation that was heard, and when */
  heard: { readonly incarnation: number; readonly atMs: number } | undefined;
  present: Member | undefined;
};

export class MembershipState {
  readonly #leaseMs: number;
  readonly #known = new Map<string, Known>();
  #isConnected = true;
  #tickedMs: number;

  constructor(leaseMs: number, nowMs: number) {
    this.#leaseMs = leaseMs;
    this.#tickedMs = nowMs;
  }

  /** How many it remembers. */
  get names(): number {
    return this.#known.size;
  }

  members(kind: MemberKind): Member[] {
    const present = [...this.#known.values()].map((known) => known.present);
    return present.filter((member): member is Member => member?.kind === kind);
  }

  /** The registry holds this entry now. */
  entry(member: Member, nowMs: number): MembershipChange[] {
    const known = this.#of(member.kind, member.name);
    const { present } = known;
    known.entry = member;
    if (present === undefined) return this.#joinIfHeard(known, nowMs);
    if (present.incarnation === member.incarnation) {
      known.present = member;
      return JSON.stringify(present.body) === JSON.stringify(member.body) ? [] : [{ type: "changed", member }];
    }
    known.present = undefined;
    const reason = `another process announced itself as '${member.name}'`;
    return [{ type: "left", member: present, reason }, ...this.#joinIfHeard(known, nowMs)];
  }

  /** The registry holds no entry of that name any more. */
  removed(kind: MemberKind, name: string): MembershipChange[] {
    const known = this.#of(kind, name);
    known.entry = undefined;
    return this.#leave(known, "it withdrew");
  }

  beat(kind: MemberKind, name: string, incarnation: number, nowMs: number): MembershipChange[] {
    if (!this.#known.has(`${kind}.${name}`) && !this.#hasRoom()) return []; // M5
    const known = this.#of(kind, name);
    if (known.entry !== undefined && incarnation < known.entry.incarnation) return []; // M4
    known.heard = { incarnation, atMs: nowMs };
    return known.present === undefined ? this.#joinIfHeard(known, nowMs) : [];
  }

  goodbye(kind: MemberKind, name: string, incarnation: number, reason: string): MembershipChange[] {
    const known = this.#known.get(`${kind}.${name}`);
    if (known === undefined) return [];
    if (known.heard?.incarnation === incarnation) known.heard = undefined;
    return known.present?.incarnation === incarnation ? this.#leave(known, reason) : [];
  }

  connection(isConnected: boolean, nowMs: number): void {
    this.#isConnected = isConnected;
    this.#forgive(nowMs);
  }

  tick(nowMs: number): MembershipChange[] {
    const wasLate = nowMs - this.#tickedMs > this.#leaseMs / 2;
    this.#tickedMs = nowMs;
    if (!this.#isConnected || wasLate) {
      this.#forgive(nowMs); // M3
      return [];
    }
    const changes: MembershipChange[] = [];
    for (const [key, known] of this.#known) {
      const { heard } = known;
      if (heard === undefined && known.entry === undefined) this.#known.delete(key);
      if (heard === undefined || nowMs - heard.atMs <= this.#leaseMs) continue;
      known.heard = undefined;
      changes.push(...this.#leave(known, `it was silent for ${Math.round(nowMs - heard.atMs)} ms`));
    }
    return changes;
  }

  #joinIfHeard(known: Known, nowMs: number): MembershipChange[] {
    const { entry, heard } = known;
    if (entry === undefined || heard?.incarnation !== entry.incarnation) return [];
    if (nowMs - heard.atMs > this.#leaseMs) return [];
    known.present = entry;
    return [{ type: "joined", member: entry }];
  }

  #leave(known: Known, reason: string): MembershipChange[] {
    const { present } = known;
    known.present = undefined;
    return present === undefined ? [] : [{ type: "left", member: present, reason }];
  }

  #forgive(nowMs: number): void {
    for (const known of this.#known.values()) {
      if (known.heard !== undefined) known.heard = { ...known.heard, atMs: nowMs };
    }
  }

  /** Makes it, where somebody is there whom nothing but a beat names. */
  #hasRoom(): boolean {
    if (this.#known.size < maxNames) return true;
    for (const [key, { entry }] of this.#known) if (entry === undefined) return this.#known.delete(key);
    return false;
  }

  #of(kind: MemberKind, name: string): Known {
    const key = `${kind}.${name}`;
    let known = this.#known.get(key);
    if (known === undefined) {
      known = { entry: undefined, heard: undefined, present: undefined };
      this.#known.set(key, known);
    }
    return known;
  }
}
