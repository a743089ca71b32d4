/**
 * The calls that the workflow makes on groups, from the call to the last rank's reply. Pure.
 *
 * Owner of: which ranks of a call have replied, and which call a method's replay repeats.
 *
 * - CB1 where ranks hold one state together, a call ends on all of them or on none: a death sends all of them back.
 * - CB2 the last call of a replayed method that succeeded on any rank is the one that is repeated.
 * - CB3 a call is forgotten once it has ended and no replay repeats it.
 */
import { fromErrorRecord, toErrorRecord } from "@treadle/contracts";
import type { CallOutcome } from "../channel/channel-messages.ts";

export type RankCall = { readonly call: string; readonly worker: string; readonly index: number };
type OpenRankCall = RankCall & { hasReplied: boolean; isSettled: boolean; savedPath: string | undefined };

export type GroupCall = {
  readonly sequence: number;
  readonly component: string;
  readonly method: string;
  readonly step: number | undefined;
  /** it changes the component's state */
  readonly changes: boolean;
  /** its ranks hold one state together */
  readonly isGang: boolean;
  readonly isReplayed: boolean;
};

type OpenCall = GroupCall & {
  readonly ranks: readonly OpenRankCall[];
  failure: { readonly error: unknown } | undefined;
};

export type Settled = {
  readonly call: RankCall;
  readonly group: GroupCall;
  readonly savedPath: string | undefined;
  readonly failure: { readonly error: unknown } | undefined;
};

/** As consumers in other processes can be told. */
export const outcomeOf = ({ failure }: Settled): CallOutcome =>
  failure === undefined ? { ok: true } : { ok: false, error: fromErrorRecord(toErrorRecord(failure.error)) };

export class CallBook {
  readonly #open = new Map<number, OpenCall>();
  readonly #byCall = new Map<string, { readonly group: OpenCall; readonly rank: OpenRankCall }>();
  /** component and method to the sequence of the call that a replay repeats */
  readonly #replays = new Map<string, number>();
  readonly #forget: (sequence: number) => void;

  constructor(forget: (sequence: number) => void) {
    this.#forget = forget;
  }

  get isEmpty(): boolean {
    return this.#open.size === 0;
  }

  get open(): { call: string; method: string; step: number | undefined; worker: string; replied: boolean }[] {
    return [...this.#open.values()].flatMap(({ method, step, ranks }) =>
      ranks.map(({ call, worker, isSettled, hasReplied }) => ({
        call,
        method,
        step,
        worker,
        replied: isSettled || hasReplied,
      })),
    );
  }

  begin(group: GroupCall, indices: readonly number[]): readonly RankCall[] {
    const ranks = indices.map(
      (index): OpenRankCall => ({
        call: `${group.sequence}/${index}`,
        worker: `${group.component}/${index}`,
        index,
        hasReplied: false,
        isSettled: false,
        savedPath: undefined,
      }),
    );
    const open: OpenCall = { ...group, ranks, failure: undefined };
    this.#open.set(group.sequence, open);
    for (const rank of ranks) this.#byCall.set(rank.call, { group: open, rank });
    return ranks;
  }

  /** Several ranks that hold one state together make this call. */
  isJoint(call: string): boolean {
    const group = this.#byCall.get(call)?.group;
    return group?.isGang === true && group.ranks.length > 1;
  }

  returned(call: string, savedPath: string | undefined): Settled[] {
    const found = this.#byCall.get(call);
    if (!found || found.rank.isSettled) return [];
    const { group, rank } = found;
    rank.hasReplied = true;
    rank.savedPath = savedPath;
    if (group.isGang && group.failure === undefined) {
      if (group.ranks.some((other) => !other.hasReplied)) return [];
      return this.#settle(group, group.ranks); // CB1
    }
    return this.#settle(group, [rank]);
  }

  threw(call: string, error: unknown): Settled[] {
    const found = this.#byCall.get(call);
    if (!found || found.rank.isSettled) return [];
    const { group, rank } = found;
    group.failure ??= { error };
    // CB1: those that have replied and wait for the others wait in vain.
    const others = group.ranks.filter((other) => other !== rank && other.hasReplied && !other.isSettled);
    const own = this.#settle(group, [rank], { error });
    return [...own, ...this.#settle(group, others, { error })];
  }

  /** The calls that start over when a process ends, on it alone or on its whole group. */
  startOver(component: string, workers: ReadonlySet<string>): { call: string; worker: string; sequence: number }[] {
    const again: { call: string; worker: string; sequence: number }[] = [];
    for (const { component: name, sequence, ranks } of this.#open.values()) {
      if (name !== component) continue;
      for (const rank of ranks) {
        if (rank.isSettled || !workers.has(rank.worker)) continue;
        rank.hasReplied = false;
        again.push({ call: rank.call, worker: rank.worker, sequence });
      }
    }
    return again;
  }

  /** The call that is repeated on a restarted process, if one of this method has ever succeeded. */
  replayOf(component: string, method: string): number | undefined {
    return this.#replays.get(`${component}.${method}`);
  }

  /** Nothing of it is repeated any more. */
  forgetReplays(component: string): void {
    for (const [key, sequence] of this.#replays) {
      if (key.slice(0, key.lastIndexOf(".")) !== component) continue;
      this.#replays.delete(key);
      if (!this.#open.has(sequence)) this.#forget(sequence); // CB3
    }
  }

  /** The call of this rank has not ended. */
  isOpen(call: string): boolean {
    return this.#byCall.has(call);
  }

  /** Every rank's call that is open. */
  unsettled(): string[] {
    return [...this.#open.values()].flatMap(({ ranks }) =>
      ranks.flatMap(({ call, isSettled }) => (isSettled ? [] : [call])),
    );
  }

  clear(): void {
    this.#open.clear();
    this.#byCall.clear();
  }

  #settle(
    group: OpenCall,
    ranks: readonly OpenRankCall[],
    failure: { readonly error: unknown } | undefined = group.isGang ? group.failure : undefined,
  ): Settled[] {
    const settled = ranks.map((rank): Settled => {
      rank.isSettled = true;
      this.#byCall.delete(rank.call);
      return { call: rank, group, savedPath: rank.savedPath, failure };
    });
    // Not when all ranks are done: one that dies before the others are would come back without it.
    if (failure === undefined && group.isReplayed && ranks.length > 0) this.#replaces(group); // CB2
    if (group.ranks.every(({ isSettled }) => isSettled)) this.#end(group);
    return settled;
  }

  #replaces({ component, method, sequence }: GroupCall): void {
    const key = `${component}.${method}`;
    const before = this.#replays.get(key);
    this.#replays.set(key, sequence);
    if (before !== undefined && before !== sequence && !this.#open.has(before)) this.#forget(before); // CB3
  }

  #end({ component, method, sequence }: GroupCall): void {
    if (!this.#open.delete(sequence)) return;
    if (this.#replays.get(`${component}.${method}`) !== sequence) this.#forget(sequence); // CB3
  }
}
