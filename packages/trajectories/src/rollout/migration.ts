import { placeExact } from "../place.ts";
import { busyTokens, busyUntil } from "./busy-rank.ts";
import type { Estimate, Groups } from "./groups.ts";
import { RankedSet } from "./ranked-set.ts";

/** A trajectory without a home. */
export const nowhere = -1;

/**
 * What `migrate` means: `scaled`, the paper's; `anew`, the unfinished are placed anew; `pays`, anew, and only where what is
 * left is over sooner by a tenth, the transfer included.
 */
export const migrationRules = ["scaled", "anew", "pays"] as const;
export type MigrationRule = (typeof migrationRules)[number];

export type Predicted = {
  /** the worker that has the trajectory's keys and values */
  readonly home: number;
  /** by which trajectories are ranked */
  readonly rankedTokens: number;
  readonly remainingTokens: number;
  /** that moving it now takes */
  readonly transferSeconds: number;
};

/** What groups are made by. */
export type Grouping = {
  /** those that take groups, the fastest first */
  readonly workers: readonly number[];
  /** of every worker */
  readonly tokenTimes: readonly number[];
  readonly factor: (k: number) => number;
  /** trajectories that a worker computes at once */
  readonly places: number;
  /** noise-aware, for placing; must never decrease, unless groups are given and never made anew */
  readonly estimate: Estimate;
};

/** The unfinished are placed anew once more than this share of them has changed; it takes 0.03 ms for 6400. */
const staleShare = 0.01;
/** of what the trajectory has left, by which a move must shorten it */
const worthwhileShare = 0.1;

/**
 * The unfinished trajectories in groups, the longest at the fastest worker: where each begins, and where it goes on after a
 * turn. A simulated rollout has all of them from the start; ranks of a live one tell each other of theirs.
 *
 * `scaled` is Heddle §5.3's rule: groups shrink in proportion as trajectories finish, and a trajectory belongs to the group in
 * which its rank among the unfinished falls. All groups shrink alike, so the longest drift to slower workers as the short ones
 * finish. They are made anew only when trajectories come. `anew` and `pays` place the unfinished anew, by what is predicted for
 * them now.
 */
export class UnfinishedGroups {
  readonly #rule: MigrationRule;
  #grouping: Grouping;
  readonly #unfinished = new RankedSet(64);
  readonly #home: number[] = [];
  /** that it has still to come */
  readonly #remaining: number[] = [];
  /** unfinished trajectories of each worker, in any order, and where in that list each is */
  readonly #at: number[][];
  readonly #index: number[] = [];
  /** what each in those lists has still to come, in the same order: `pays` sums it twice a turn */
  readonly #rests: number[][];
  /** those without a worker, and the tokens that they have still to come, together */
  #numWaiting = 0;
  #waitingTokens = 0;
  #busyTokens: ReturnType<typeof busyTokens>;
  #ends: readonly number[] = [];
  #lastNonEmpty = -1;
  /** trajectories when groups were made */
  #numPlaced = 0;
  /** changes since */
  #stale = Number.POSITIVE_INFINITY;

  constructor(rule: MigrationRule, grouping: Grouping) {
    this.#rule = rule;
    this.#grouping = grouping;
    this.#at = grouping.tokenTimes.map(() => []);
    this.#rests = grouping.tokenTimes.map(() => []);
    this.#busyTokens = busyTokens(grouping.factor, grouping.places);
  }

  /** Those of a rollout that begins with these groups. */
  static of(rule: MigrationRule, groups: Groups, predictions: readonly number[], grouping: Omit<Grouping, "workers">) {
    const formed = new UnfinishedGroups(rule, { ...grouping, workers: groups.workers });
    for (const [trajectory, tokens] of predictions.entries())
      formed.add(trajectory, tokens, groups.workerOf[trajectory]!);
    if (rule === "scaled") formed.#end(groups.sizes);
    return formed;
  }

  /** From now on groups are made by that. */
  set grouping(grouping: Grouping) {
    this.#grouping = grouping;
    this.#busyTokens = busyTokens(grouping.factor, grouping.places);
    this.#stale = Number.POSITIVE_INFINITY;
  }

  /**
   * `worker`: where it is, or shall begin, or `nowhere`. Of equal ones the smaller tie counts as longer. One that has begun has fewer
   * tokens to come than it may be ranked by.
   */
  add(
    trajectory: number,
    rankedTokens: number,
    worker: number,
    tie = trajectory,
    remainingTokens = rankedTokens,
  ): void {
    this.#unfinished.add(trajectory, rankedTokens, tie);
    this.#remaining[trajectory] = remainingTokens;
    this.#join(trajectory, worker);
    this.#stale = this.#rule === "scaled" ? Number.POSITIVE_INFINITY : this.#stale + 1;
  }

  finished(trajectory: number): void {
    this.#unfinished.remove(trajectory);
    this.#leave(trajectory);
    this.#stale++;
  }

  predicted(
    trajectory: number,
    { rankedTokens, remainingTokens }: Pick<Predicted, "rankedTokens" | "remainingTokens">,
    tie = trajectory,
  ): void {
    this.#unfinished.remove(trajectory);
    this.#unfinished.add(trajectory, rankedTokens, tie);
    const home = this.#home[trajectory]!;
    if (home === nowhere) this.#waitingTokens += remainingTokens - this.#remaining[trajectory]!;
    else this.#rests[home]![this.#index[trajectory]!] = remainingTokens;
    this.#remaining[trajectory] = remainingTokens;
    this.#stale++;
  }

  /** It is at another worker now, or shall begin there. */
  moved(trajectory: number, worker: number): void {
    this.#leave(trajectory);
    this.#join(trajectory, worker);
  }

  /** The worker in whose group its rank among the unfinished falls. */
  workerOf(trajectory: number): number {
    if (this.#isStale()) this.#replace();
    const rank = this.#unfinished.rank(trajectory);
    const share = this.#rule === "scaled" ? this.#unfinished.size / this.#numPlaced : 1;
    // The first group whose end, scaled, is above the rank; an empty one ends where the one before it does.
    let [low, high] = [0, this.#ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rank < this.#ends[middle]! * share) high = middle;
      else low = middle + 1;
    }
    return this.#grouping.workers[low < this.#ends.length ? low : this.#lastNonEmpty]!;
  }

  /** Where it shall go on, as `predicted` and placed now. */
  target(trajectory: number, { home, remainingTokens, transferSeconds }: Omit<Predicted, "rankedTokens">): number {
    const target = this.workerOf(trajectory);
    if (target === home || this.#rule !== "pays") return target;
    const secondsAt = (worker: number): number => this.#secondsAt(worker, trajectory, remainingTokens);
    const isLonger = secondsAt(target) + transferSeconds > (1 - worthwhileShare) * secondsAt(home);
    return isLonger ? home : target;
  }

  /** Until the trajectory, which has so much to come, is over at that worker. */
  #secondsAt(worker: number, trajectory: number, remainingTokens: number): number {
    const { workers, tokenTimes, places } = this.#grouping;
    const busy = busyUntil(remainingTokens, this.#rests[worker]!, places, {
      except: this.#home[trajectory] === worker ? this.#index[trajectory]! : -1,
      // Those that wait go wherever there is room, so each worker will have a share of them, each of average length.
      numMore: Math.ceil(this.#numWaiting / workers.length),
      eachMore: this.#waitingTokens / Math.max(1, this.#numWaiting),
    });
    return tokenTimes[worker]! * this.#busyTokens(busy);
  }

  #join(trajectory: number, worker: number): void {
    this.#home[trajectory] = worker;
    if (worker === nowhere) {
      this.#numWaiting++;
      this.#waitingTokens += this.#remaining[trajectory]!;
      return;
    }
    this.#index[trajectory] = this.#at[worker]!.push(trajectory) - 1;
    this.#rests[worker]!.push(this.#remaining[trajectory]!);
  }

  #leave(trajectory: number): void {
    const home = this.#home[trajectory]!;
    if (home === nowhere) {
      this.#numWaiting--;
      this.#waitingTokens -= this.#remaining[trajectory]!;
      return;
    }
    const there = this.#at[home]!;
    const rests = this.#rests[home]!;
    const [last, rest] = [there.pop()!, rests.pop()!];
    if (last === trajectory) return;
    const index = this.#index[trajectory]!;
    there[index] = last;
    rests[index] = rest;
    this.#index[last] = index;
  }

  #isStale(): boolean {
    if (this.#rule === "scaled") return this.#stale === Number.POSITIVE_INFINITY;
    return this.#stale > staleShare * this.#unfinished.size;
  }

  #replace(): void {
    const { workers, tokenTimes, estimate } = this.#grouping;
    const seconds = workers.map((worker) => tokenTimes[worker]!);
    const sorted = this.#unfinished.values();
    const sizes = placeExact(sorted, seconds, estimate(sorted))?.sizes;
    if (sizes !== undefined) this.#end(sizes);
    // Where a factor that ends leaves no room for all, they stay in the groups that they are in.
    else if (this.#ends.length === 0) this.#end(workers.map(() => Math.ceil(this.#unfinished.size / workers.length)));
  }

  #end(sizes: readonly number[]): void {
    let end = 0;
    this.#ends = sizes.map((size) => {
      end += size;
      return end;
    });
    this.#lastNonEmpty = Math.max(
      0,
      sizes.findLastIndex((size) => size > 0),
    );
    this.#numPlaced = this.#unfinished.size;
    this.#stale = 0;
  }
}
