/**
 * Who is there. Pure: told which entries and beats arrive and when, it answers with what changed.
 *
 * M1 a member is there from the first beat of the incarnation that its entry names, until it says goodbye, a newer
 *    incarnation takes its name, or it is silent for longer than the lease.
 * M2 for each member `joined` and `left` alternate, beginning with `joined`.
 * M3 time during which this process was cut off, or did not run, is nobody's silence: everyone has a full lease afterwards.
 * M4 while a member is there, nothing of an older incarnation counts, and of its own no entry that is older than the last.
 * M5 when there are many names, the oldest of those under which nobody is there is forgotten for a new one.
 */
import type { Member, MemberKind, MembershipChange } from "@treadle/contracts";

const maxNames = 10_000;

type Known = {
  /** and how often it had changed */
  entry: { readonly member: Member; readonly version: number } | undefined;
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

  /** Whether its entry would be of one that is older than who is there; of the same, whether it has said something newer. */
  isOutdated(kind: MemberKind, name: string, incarnation: number, version?: number): boolean {
    const { present, entry } = this.#known.get(`${kind}.${name}`) ?? {};
    if (present !== undefined && present.incarnation > incarnation) return true;
    return version !== undefined && entry?.member.incarnation === incarnation && entry.version > version;
  }

  /** Whether the entry that such a beat speaks of is not known. */
  lacks(kind: MemberKind, name: string, incarnation: number, version: number): boolean {
    if (this.isOutdated(kind, name, incarnation)) return false;
    const entry = this.#known.get(`${kind}.${name}`)?.entry;
    return entry?.member.incarnation !== incarnation || entry.version < version;
  }

  /** A member says what it is. */
  entry(member: Member, version: number, nowMs: number): MembershipChange[] {
    const { kind, name, incarnation } = member;
    if (this.isOutdated(kind, name, incarnation, version) || !this.#makeRoomFor(`${kind}.${name}`)) return []; // M4, M5
    const known = this.#of(kind, name);
    const { present } = known;
    known.entry = { member, version };
    if (present === undefined) return this.#joinIfHeard(known, nowMs);
    if (present.incarnation === incarnation) {
      known.present = member;
      return JSON.stringify(present.body) === JSON.stringify(member.body) ? [] : [{ type: "changed", member }];
    }
    known.present = undefined;
    const reason = `another process announced itself as '${name}'`;
    return [{ type: "left", member: present, reason }, ...this.#joinIfHeard(known, nowMs)];
  }

  /** It was not who it said it was; whoever says so next is no newer or older than it. */
  disown(kind: MemberKind, name: string, reason: string): MembershipChange[] {
    const known = this.#known.get(`${kind}.${name}`);
    if (known === undefined) return [];
    known.entry = undefined;
    known.heard = undefined;
    return this.#leave(known, reason);
  }

  beat(kind: MemberKind, name: string, incarnation: number, nowMs: number): MembershipChange[] {
    if (this.isOutdated(kind, name, incarnation) || !this.#makeRoomFor(`${kind}.${name}`)) return []; // M4, M5
    const known = this.#of(kind, name);
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
    if (entry === undefined || heard?.incarnation !== entry.member.incarnation) return [];
    if (nowMs - heard.atMs > this.#leaseMs) return [];
    known.present = entry.member;
    return [{ type: "joined", member: entry.member }];
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

  /** Where it is known, or somebody can be forgotten for it. */
  #makeRoomFor(key: string): boolean {
    if (this.#known.has(key) || this.#known.size < maxNames) return true;
    for (const [each, { present }] of this.#known) if (present === undefined) return this.#known.delete(each);
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
