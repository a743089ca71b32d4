import type { Groups } from "./groups.ts";
import { RankedSet } from "./ranked-set.ts";

/**
 * Heddle §5.3's rule: groups shrink in proportion as trajectories finish, and a trajectory belongs to the group in which
 * its rank among the unfinished falls. All groups shrink alike, so the longest drift to slower
 * workers as the short ones finish.
 */
export class ScaledGroups {
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
    let end = 0;
    this.#ends = groups.sizes.map((size) => {
      end += size;
      return end;
    });
    this.#lastNonEmpty = groups.sizes.findLastIndex((size) => size > 0);
  }

  finished(trajectory: number): void {
    this.#unfinished.remove(trajectory);
  }

  /** Takes the trajectory's new prediction, and says which worker it belongs to. */
  target(trajectory: number, predictedTokens: number): number {
    this.#unfinished.remove(trajectory);
    this.#unfinished.add(trajectory, predictedTokens);
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
