/** What the pool knows of each run: its stage, what it asks for, what it has. The pool's state machine owns every field. */
import type { DeviceLease, PoolMember, Work } from "@treadle/contracts";

export type Request = {
  readonly devices: readonly string[];
  readonly work: Work | undefined;
  readonly sinceMs: number;
  readonly order: number;
  /** whether it begins beside `others`, as was decided by what was known in `version` (PD10) */
  decided: { readonly others: string; readonly version: number; readonly shares: boolean } | undefined;
  /** what was last decided of it, as it was told */
  told: string;
};
export type Held = {
  readonly lease: DeviceLease;
  readonly sinceMs: number;
  readonly turnEndsMs: number;
  isWanted: boolean;
  drainsByMs: number;
  /** what computes under it, as far as the run has said, and since when */
  work: Work | undefined;
  workSinceMs: number;
  /** its run was asked to let nothing else compute under it, and has agreed (PD10) */
  sharing: "no" | "asked" | "agreed";
  /** who computes beside it, as its run was told last */
  told: string;
};
export type Done = { readonly share: number; readonly atMs: number };
export type Stage = "queued" | "resident" | "ending";
export type Member = {
  readonly run: string;
  readonly traits: PoolMember;
  readonly devices: readonly string[];
  readonly joinedMs: number;
  stage: Stage;
  /** restored, and it has not joined again (PD9) */
  isUnheard: boolean;
  /** what it was granted of each device, from its admission on */
  memoryMiB: Readonly<Record<string, number>> | undefined;
  beatMs: number;
  /** what it said first, and last, of the part of its steps that it has done */
  firstDone: Done | undefined;
  done: Done | undefined;
  admittedMs: number;
  /** one for admission while it is queued, for leases when it is a resident */
  requests: readonly Request[];
  held: readonly Held[];
  leases: number;
  /** what it has lost to others that computed beside it, up to some time, and how much it loses in each millisecond since */
  lostMs: number;
  losing: { readonly sinceMs: number; readonly part: number };
  readonly leased: Stopwatch;
  /** with requests and no lease */
  readonly waited: Stopwatch;
  /** with requests, whatever it has (PD8): a step goes on when its last rank does */
  readonly delayed: Stopwatch;
};
export type Waiter = { readonly member: Member; readonly request: Request };
export type Holder = { readonly member: Member; readonly held: Held };

export const devicesOf = ({ devices }: PoolMember): string[] => devices.map(({ id }) => id);

export const holdersOf = (members: Iterable<Member>): Holder[] =>
  [...members].flatMap((member) => member.held.map((held) => ({ member, held })));

export function heldFrom(lease: DeviceLease, sinceMs: number, turnEndsMs: number, work?: Work): Held {
  const sharing = lease.only === undefined ? "no" : "agreed";
  return {
    ...{ lease, sinceMs, turnEndsMs, work, workSinceMs: sinceMs, sharing, told: "" },
    ...{ isWanted: false, drainsByMs: Number.POSITIVE_INFINITY },
  };
}

export function memberFrom(run: string, traits: PoolMember, nowMs: number): Member {
  return {
    ...{ run, traits, devices: devicesOf(traits), joinedMs: nowMs, beatMs: nowMs, admittedMs: nowMs },
    ...{ stage: "queued", isUnheard: false, memoryMiB: undefined, firstDone: undefined, done: undefined },
    ...{ requests: [], held: [], leases: 0, lostMs: 0 },
    losing: { sinceMs: nowMs, part: 0 },
    ...{ leased: stopped(), waited: stopped(), delayed: stopped() },
  };
}

export const overlap = (a: readonly string[], b: readonly string[]): boolean => a.some((device) => b.includes(device));

/** Until it has done its steps; infinite where nobody knows. */
export function leftMs({ firstDone, done, stage }: Member, nowMs: number): number {
  if (stage === "ending") return 0;
  if (firstDone === undefined || done === undefined || done.share <= firstDone.share) return Number.POSITIVE_INFINITY;
  const aShareMs = (done.atMs - firstDone.atMs) / (done.share - firstDone.share);
  return Math.max(0, (1 - done.share) * aShareMs - (nowMs - done.atMs));
}

/** `ms`: without what goes on since `sinceMs`. */
export type Stopwatch = { ms: number; sinceMs: number | undefined };

const stopped = (): Stopwatch => ({ ms: 0, sinceMs: undefined });

export const shownMs = ({ ms, sinceMs }: Stopwatch, nowMs: number): number =>
  ms + (sinceMs === undefined ? 0 : nowMs - sinceMs);

function run(watch: Stopwatch, runs: boolean, nowMs: number): void {
  if (runs === (watch.sinceMs !== undefined)) return;
  watch.ms = shownMs(watch, nowMs);
  watch.sinceMs = runs ? nowMs : undefined;
}

/** What others that computed beside it have cost it. */
export const lostBy = ({ lostMs, losing }: Member, nowMs: number): number =>
  lostMs + losing.part * (nowMs - losing.sinceMs);

/** Brings up to date since when it has leases, since when it waits, and what it loses: `part` of each millisecond. */
export function count(member: Member, part: number, nowMs: number): void {
  const { stage, held, requests, leased, waited, delayed } = member;
  const isDelayed = stage === "resident" && requests.length > 0;
  run(leased, held.length > 0, nowMs);
  run(waited, isDelayed && held.length === 0, nowMs);
  run(delayed, isDelayed, nowMs);
  if (part === member.losing.part) return;
  member.lostMs = lostBy(member, nowMs);
  member.losing = { sinceMs: nowMs, part };
}
