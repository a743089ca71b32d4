/**
 * Bounds for pipelines of three and more stages (`"pipeline": "kway"`).
 *
 * A tail is the rest of a row of stages. Its value depends on the slowest stage before it, so it has no single number;
 * two that need no such knowledge bound it: `whole`, its own seconds as a pipeline (sum + (count-1) max), and `sum`, the
 * sum of its stages. After stages with sum S and maximum M the total is at least S + max(whole, sum + (count-1) M).
 */
import type { Bounds } from "./bounds.ts";
import type { PlanModel, PlanSet } from "./model.ts";

/** Bounds of one (subgraph, chunk, count) run as one or more stages. */
export type Tail = {
  /** by grid index, proven from below; neither grows with the level */
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
    const { grid, needsLower } = this.#bounds;
    const { levels } = grid;
    const { lower, upper, byLevel } = this.#bounds.gridRow(set, chunkIndex);
    const at = byLevel ? levels : levels.map((_, g) => g);
    const whole = Float64Array.from(at, (index) => (needsLower ? count * lower[index]! : 0));
    const sum = Float64Array.from(at, (index) => (needsLower ? lower[index]! : 0));
    const upperSum = Float64Array.from(at, (index) => upper[index]!);
    const upperMax = Float64Array.from(upperSum);
    for (const cut of set.cuts) {
      if (!cut.beside) continue;
      const a = this.#bounds.gridRow(cut.first, chunkIndex);
      const rest = this.tail(cut.second, chunkIndex, count);
      for (let g = 0; g < levels.length; g++) {
        const classes = grid.classes(g, cut.free);
        const numClasses = needsLower ? classes.secondIndex.length : 0;
        for (let i = 0; i < numClasses; i++) {
          const seconds = a.lower[a.byLevel ? classes.firstLevel[i]! : classes.firstIndex[i]!]!;
          const second = classes.secondIndex[i]!;
          const stages = seconds + rest.sum[second]!;
          const pipeline = Math.max(seconds + rest.whole[second]!, stages + (count - 1) * seconds);
          if (pipeline < whole[g]!) whole[g] = pipeline;
          if (stages < sum[g]!) sum[g] = stages;
        }
        const members = grid.members(g, cut.free);
        for (let i = 0; i < members.secondIndex.length; i++) {
          const seconds = a.upper[a.byLevel ? members.firstLevel[i]! : members.firstIndex[i]!]!;
          const second = members.secondIndex[i]!;
          const stages = seconds + rest.upperSum[second]!;
          const max = Math.max(seconds, rest.upperMax[second]!);
          if (stages + (count - 1) * max < upperSum[g]! + (count - 1) * upperMax[g]!) {
            upperSum[g] = stages;
            upperMax[g] = max;
          }
        }
      }
    }
    for (const bound of [whole, sum])
      for (let g = levels.length - 2; g >= 0; g--) bound[g] = Math.max(bound[g]!, bound[g + 1]!);
    return { whole, sum, upperSum, upperMax };
  }
}

/** The least total of stages with `sum` and `max` followed by a tail on at most the grid level at `index`. */
export function tailBound(sum: number, max: number, tail: Tail, index: number, count: number): number {
  return sum + Math.max(tail.whole[index]!, tail.sum[index]! + (count - 1) * max);
}
