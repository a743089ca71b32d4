import { placeExact } from "../place.ts";
import type { Groups } from "./groups.ts";
import { RankedSet } from "./ranked-set.ts";

/** Where a trajectory goes on after a turn that is not its last. */
export type Migration = {
  /** Takes the trajectory's new prediction, and says which worker it belongs to. */
  readonly target: (trajectory: number, predicted: Predicted) => number;
  /** It is at another worker now. */
  readonly moved: (trajectory: number, worker: number) => void;
  readonly finished: (trajectory: number) => void;
};

export type Predicted = {
  /** the worker that has the trajectory's keys and values */
  readonly home: number;
  /** by which trajectories are ranked */
  readonly rankedTokens: number;
  readonly remainingTokens: number;
  /** that moving it now takes */
  readonly transferSeconds: number;
};

/**
 * Heddle §5.3's rule: groups shrink in proportion as trajectories finish, and a trajectory belongs to the group in which
 * its rank among the unfinished falls. All groups shrink alike, so the longest drift to slower
 * workers as the short ones finish.
 */
export class ScaledGroups implements Migration {
  readonly #groups: Groups;
  readonly #unfinished: RankedSet;
  readonly #total: number;
  /** ends[g]: trajectories of the groups up to g, as they were at the start */
  readonly #ends: readonly number[];
  readonly #lastNonEmpty: number;

  constructor(groups: Groups, predictions: readonly number[]) {
    this.#groups = groups;
    this.#total = predictions.length;
    this.#unfinished = new RankedSet(predictions.length);
    for (const [trajectory, tokens] of predictions.entries()) this.#unfinished.add(trajectory, tokens);
    this.#ends = endsOf(groups.sizes);
    this.#lastNonEmpty = groups.sizes.findLastIndex((size) => size > 0);
  }

  finished(trajectory: number): void {
    this.#unfinished.remove(trajectory);
  }

  moved(): void {}

  target(trajectory: number, { rankedTokens }: Pick<Predicted, "rankedTokens">): number {
    this.#unfinished.remove(trajectory);
    this.#unfinished.add(trajectory, rankedTokens);
    const rank = this.#unfinished.rank(trajectory);
    const share = this.#unfinished.size / this.#total;
    // The first group whose scaled end is above the rank; an empty one ends where the one before it does.
    let [low, high] = [0, this.#ends.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rank < this.#ends[middle]! * share) high = middle;
      else low = middle + 1;
    }
    const group = this.#groups.sizes[low]! > 0 ? low : this.#lastNonEmpty;
    return this.#groups.workers[group]!;
  }
}

/** The unfinished are placed anew once more than this share of them has changed; it takes 0.03 ms for 6400. */
const staleShare = 0.01;

/**
 * Places the unfinished anew, by what is predicted for them now. `worthwhile`: the share by which a move must shorten what
 * the trajectory has left, its transfer included; 0 moves whenever the placement differs.
 */
export class ReplacedGroups implements Migration {
  readonly #workers: readonly number[];
  readonly #tokenTimes: readonly number[];
  readonly #factor: (k: number) => number;
  readonly #placingFactor: (k: number) => number;
  readonly #worthwhile: number;
  readonly #unfinished: RankedSet;
  readonly #home: Int32Array;
  /** unfinished trajectories of each worker */
  readonly #living: Int32Array;
  readonly #beside: (worker: number) => number;
  #ends: readonly number[] = [];
  #stale = Number.POSITIVE_INFINITY;

  constructor(input: {
    readonly groups: Groups;
    readonly predictions: readonly number[];
    readonly tokenTimes: readonly number[];
    readonly factor: (k: number) => number;
    /** noise-aware, for placing; must never decrease */
    readonly placingFactor: (k: number) => number;
    readonly worthwhile: number;
    /** trajectories of others that a worker has; default: none */
    readonly beside?: ((worker: number) => number) | undefined;
  }) {
    const { groups, predictions, tokenTimes } = input;
    this.#workers = groups.workers;
    this.#tokenTimes = tokenTimes;
    this.#factor = input.factor;
    this.#placingFactor = input.placingFactor;
    this.#worthwhile = input.worthwhile;
    this.#beside = input.beside ?? (() => 0);
    this.#unfinished = new RankedSet(predictions.length);
    for (const [trajectory, tokens] of predictions.entries()) this.#unfinished.add(trajectory, tokens);
    this.#home = Int32Array.from(groups.workerOf);
    this.#living = new Int32Array(tokenTimes.length);
    for (const worker of this.#home) this.#living[worker]!++;
  }

  finished(trajectory: number): void {
    this.#unfinished.remove(trajectory);
    this.#living[this.#home[trajectory]!]!--;
    this.#stale++;
  }

  target(trajectory: number, { home, rankedTokens, remainingTokens, transferSeconds }: Predicted): number {
    this.#unfinished.remove(trajectory);
    this.#unfinished.add(trajectory, rankedTokens);
    this.#stale++;
    if (this.#stale > staleShare * this.#unfinished.size) this.#replace();
    const rank = this.#unfinished.rank(trajectory);
    const group = this.#ends.findIndex((end) => rank < end);
    const target = this.#workers[group < 0 ? this.#workers.length - 1 : group]!;
    if (target === home) return home;
    const seconds = (worker: number, more: number): number => {
      const all = this.#living[worker]! + this.#beside(worker) + more;
      return remainingTokens * this.#tokenTimes[worker]! * this.#factor(Math.max(1, all));
    };
    const isLonger = seconds(target, 1) + transferSeconds > (1 - this.#worthwhile) * seconds(home, 0);
    return this.#worthwhile > 0 && isLonger ? home : target;
  }

  moved(trajectory: number, worker: number): void {
    this.#living[this.#home[trajectory]!]!--;
    this.#living[worker]!++;
    this.#home[trajectory] = worker;
  }

  #replace(): void {
    const sorted = this.#unfinished.values();
    const seconds = this.#workers.map((worker) => this.#tokenTimes[worker]!);
    const sizes = placeExact(sorted, seconds, this.#placingFactor)?.sizes;
    // Fewer trajectories than at the start, where a placement was found.
    if (sizes === undefined) return;
    this.#ends = endsOf(sizes);
    this.#stale = 0;
  }
}

/** How many trajectories the groups up to each have together. */
function endsOf(sizes: readonly number[]): number[] {
  let end = 0;
  return sizes.map((size) => {
    end += size;
    return end;
  });
}
