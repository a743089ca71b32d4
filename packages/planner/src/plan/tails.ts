/**
 * Bounds for pipelines of three and more stages (`"pipeline": "kway"`).
 *
 * A tail is the rest of a row of stages. Its value depends on the slowest stage before it, so it has no single number;
 * two that need no such knowledge bound it: `whole`, its own seconds as a pipeline (sum + (count-1) max), and `sum`, the
 * sum of its stages. After stages with sum S and maximum M the total is at least S + max(whole, sum + (count-1) M).
 */
import type { Bounds } from "./bounds.ts";
import type { Cut, PlanModel, PlanSet } from "./model.ts";

/** Bounds of one (subgraph, chunk, count) run as one or more stages. */
export type Tail = {
  /** by level, proven from below; neither grows with the level */
  readonly whole: Float64Array;
  readonly sum: Float64Array;
  /** sum and maximum of stages that exist, by grid index */
  readonly upperSum: Float64Array;
  readonly upperMax: Float64Array;
};

export class Tails {
  readonly #model: PlanModel;
  readonly #bounds: Bounds;
  readonly #tails = new Map<number, Tail>();

  constructor(model: PlanModel, bounds: Bounds) {
    this.#model = model;
    this.#bounds = bounds;
  }

  tail(set: PlanSet, chunkIndex: number, count: number): Tail {
    const items = this.#model.items;
    // count = whole / chunk, and the whole is one of the items, so its index identifies it.
    const key = (set.index * items.length + chunkIndex) * items.length + items.indexOf(items[chunkIndex]! * count);
    let tail = this.#tails.get(key);
    if (tail === undefined) {
      tail = this.#make(set, chunkIndex, count);
      this.#tails.set(key, tail);
    }
    return tail;
  }

  #make(set: PlanSet, chunkIndex: number, count: number): Tail {
    const { grid, floorIndex } = this.#bounds;
    const alone = this.#bounds.row(set, chunkIndex);
    const { needsLower } = this.#bounds;
    const wholeAt = Float64Array.from(grid, (level) => (needsLower ? count * alone.lower[level]! : 0));
    const sumAt = Float64Array.from(grid, (level) => (needsLower ? alone.lower[level]! : 0));
    const upperSum = Float64Array.from(alone.upper);
    const upperMax = Float64Array.from(alone.upper);
    for (const cut of set.cuts) {
      if (!cut.beside) continue;
      const a = this.#bounds.row(cut.first, chunkIndex);
      const rest = this.tail(cut.second, chunkIndex, count);
      for (let g = 0; g < grid.length; g++) {
        const level = grid[g]!;
        if (needsLower)
          this.#bounds.forEachClass(cut, level, (most, secondMost) => {
            const seconds = a.lower[most]!;
            const sum = seconds + rest.sum[secondMost]!;
            const whole = Math.max(seconds + rest.whole[secondMost]!, sum + (count - 1) * seconds);
            if (whole < wholeAt[g]!) wholeAt[g] = whole;
            if (sum < sumAt[g]!) sumAt[g] = sum;
          });
        for (let i = cut.free ? g : 0; i < grid.length && (cut.free ? i === g : grid[i]! < level); i++) {
          const at = cut.free ? g : floorIndex[level - grid[i]!]!;
          const sum = a.upper[i]! + rest.upperSum[at]!;
          const max = Math.max(a.upper[i]!, rest.upperMax[at]!);
          if (sum + (count - 1) * max < upperSum[g]! + (count - 1) * upperMax[g]!) {
            upperSum[g] = sum;
            upperMax[g] = max;
          }
        }
      }
    }
    if (!needsLower) return { whole: wholeAt, sum: sumAt, upperSum, upperMax };
    return { whole: this.#bounds.spread(wholeAt), sum: this.#bounds.spread(sumAt), upperSum, upperMax };
  }

  /** Both bounds of a pipeline whose first stage is the first part of `cut` and whose others are a tail of the second, by grid index. */
  pipeline(cut: Cut, chunkIndex: number, count: number, lowerAt: Float64Array, upperAt: Float64Array): void {
    const { grid, floorIndex } = this.#bounds;
    const a = this.#bounds.row(cut.first, chunkIndex);
    const rest = this.tail(cut.second, chunkIndex, count);
    for (let g = 0; g < grid.length; g++) {
      const level = grid[g]!;
      if (this.#bounds.needsLower)
        this.#bounds.forEachClass(cut, level, (most, secondMost) => {
          const bound = tailBound(a.lower[most]!, a.lower[most]!, rest, secondMost, count);
          if (bound < lowerAt[g]!) lowerAt[g] = bound;
        });
      for (let i = cut.free ? g : 0; i < grid.length && (cut.free ? i === g : grid[i]! < level); i++) {
        const at = cut.free ? g : floorIndex[level - grid[i]!]!;
        const max = Math.max(a.upper[i]!, rest.upperMax[at]!);
        const total = a.upper[i]! + rest.upperSum[at]! + (count - 1) * max;
        if (total < upperAt[g]!) upperAt[g] = total;
      }
    }
  }
}

/** The least total of stages with `sum` and `max` followed by a tail on `level`. */
export function tailBound(sum: number, max: number, tail: Tail, level: number, count: number): number {
  return sum + Math.max(tail.whole[level]!, tail.sum[level]! + (count - 1) * max);
}
