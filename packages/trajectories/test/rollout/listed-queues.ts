/** What `UnfinishedGroups` knows of queues, in the plainest way: lists that are copied for each question. */
import { type Busy, busyTokens } from "../../src/rollout/busy-rank.ts";
import { nowhere } from "../../src/rollout/migration.ts";

/** `busyUntil`, of a list of those beside the episode. */
export function busyUntilListed(rest: number, others: readonly number[], places: number): Busy {
  const rests = [rest, ...others];
  const sumOf = (most: number) => rests.reduce((sum, each) => sum + Math.min(each, most), 0);
  let level = rests.length > places ? sumOf(Number.POSITIVE_INFINITY) / places : 0;
  for (let next = level; rests.length > places; level = next) {
    const above = rests.filter((each) => each > level).length;
    next = (sumOf(level) - above * level) / (places - above);
    if (!(next < level)) break;
  }
  const longest = Math.max(rest, level);
  return { longest, sum: sumOf(longest), size: rests.length };
}

type Listed = { readonly trajectory: number; tokens: number };

/** Lists are in the same order as those of `UnfinishedGroups`, so that all sums are the same to the last bit. */
export class ListedQueues {
  readonly #tokenTimes: readonly number[];
  readonly #places: number;
  readonly #busyTokens: ReturnType<typeof busyTokens>;
  readonly #at: Listed[][];
  readonly #home = new Map<number, number>();
  #waiting: Listed[] = [];
  #waitingTokens = 0;

  constructor(tokenTimes: readonly number[], factor: (k: number) => number, places: number) {
    this.#tokenTimes = tokenTimes;
    this.#places = places;
    this.#busyTokens = busyTokens(factor, places);
    this.#at = tokenTimes.map(() => []);
  }

  get homes(): readonly (readonly [trajectory: number, home: number])[] {
    return [...this.#home];
  }

  has(trajectory: number): boolean {
    return this.#home.has(trajectory);
  }

  tokensOf(trajectory: number): number {
    return this.#listed(trajectory).tokens;
  }

  add(trajectory: number, tokens: number, home: number): void {
    this.#home.set(trajectory, home);
    if (home === nowhere) this.#waitingTokens += tokens;
    (home === nowhere ? this.#waiting : this.#at[home]!).push({ trajectory, tokens });
  }

  predicted(trajectory: number, tokens: number): void {
    const listed = this.#listed(trajectory);
    if (this.#home.get(trajectory) === nowhere) this.#waitingTokens += tokens - listed.tokens;
    listed.tokens = tokens;
  }

  finished(trajectory: number): void {
    const listed = this.#listed(trajectory);
    const home = this.#home.get(trajectory)!;
    this.#home.delete(trajectory);
    if (home === nowhere) {
      this.#waiting = this.#waiting.filter((each) => each !== listed);
      this.#waitingTokens -= listed.tokens;
      return;
    }
    // The last takes its place.
    const there = this.#at[home]!;
    there[there.indexOf(listed)] = there.at(-1)!;
    there.pop();
  }

  moved(trajectory: number, home: number): void {
    const tokens = this.tokensOf(trajectory);
    this.finished(trajectory);
    this.add(trajectory, tokens, home);
  }

  /** Until the trajectory is over at that worker, beside what is there and a share of what waits for any. */
  secondsAt(worker: number, trajectory: number): number {
    const beside = this.#at[worker]!.flatMap((each) => (each.trajectory === trajectory ? [] : each.tokens));
    const mean = this.#waitingTokens / Math.max(1, this.#waiting.length);
    const share = new Array<number>(Math.ceil(this.#waiting.length / this.#at.length)).fill(mean);
    const busy = busyUntilListed(this.tokensOf(trajectory), [...beside, ...share], this.#places);
    return this.#tokenTimes[worker]! * this.#busyTokens(busy);
  }

  #listed(trajectory: number): Listed {
    const home = this.#home.get(trajectory)!;
    const list = home === nowhere ? this.#waiting : this.#at[home]!;
    return list.find((each) => each.trajectory === trajectory)!;
  }
}
