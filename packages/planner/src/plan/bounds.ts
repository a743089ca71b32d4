/**
 * Lower and upper bounds of F(subgraph, devices, items) for the fast search.
 *
 * F never grows with devices (idle ones are allowed), so one value bounds a whole range of device counts: from below it
 * holds for fewer devices, from above for more. Bounds are therefore computed on a grid of levels, dense at the small end
 * and geometric above. At a grid level a pipeline's splits fall into classes, those whose first part lies between two
 * grid levels; a class is bounded below by its most generous reading (both parts rounded up) and above by one member of
 * it. Where the grid has every level, both bounds are exact.
 */
import { type Operations, type PlanModel, type PlanSet, pipelineSeconds } from "./model.ts";
import { Tails } from "./tails.ts";

/** Bounds of one (subgraph, items), by level. */
export type Row = {
  /** proven: F is at least this; never grows with the level. Entry 0 is Infinity */
  readonly lower: Float64Array;
  /** F is at most this, by grid index; never grows either */
  readonly upper: Float64Array;
  /** whether `lower` is F itself */
  readonly exact: Uint8Array;
};

/** Levels 1..dense, then each about `ratio` times the one before, up to `levels`. */
export function makeGrid(levels: number, dense: number, ratio: number): Int32Array {
  const grid: number[] = [];
  for (let level = 1; level < levels; level = Math.max(level + 1, level < dense ? 0 : Math.floor(level * ratio)))
    grid.push(level);
  grid.push(levels);
  return Int32Array.from(grid);
}

/** Thrown out of deep recursion when the deadline has passed; caught where a best-effort answer is put together. */
export class DeadlinePassed extends Error {}

export class Bounds {
  readonly grid: Int32Array;
  /** by level: index of the last grid level at or below it */
  readonly floorIndex: Int32Array;
  readonly tails: Tails;
  readonly #model: PlanModel;
  readonly #operations: Operations;
  readonly #checkDeadline: () => void;
  readonly #rows: (Row | undefined)[] = [];
  evaluations = 0;

  constructor(model: PlanModel, operations: Operations, grid: Int32Array, checkDeadline: () => void) {
    this.#model = model;
    this.#operations = operations;
    this.#checkDeadline = checkDeadline;
    this.grid = grid;
    this.tails = new Tails(model, this);
    this.floorIndex = new Int32Array(model.levels + 1);
    for (let level = 1, index = 0; level <= model.levels; level++) {
      if (index + 1 < grid.length && grid[index + 1]! <= level) index++;
      this.floorIndex[level] = index;
    }
  }

  numRows(): number {
    return this.#rows.reduce((count, row) => count + (row === undefined ? 0 : 1), 0);
  }

  row(set: PlanSet, itemsIndex: number): Row {
    const key = set.index * this.#model.items.length + itemsIndex;
    let row = this.#rows[key];
    if (row === undefined) {
      row = set.leaf >= 0 ? this.#leafRow(set.leaf, itemsIndex) : this.#compositeRow(set, itemsIndex);
      this.#rows[key] = row;
    }
    return row;
  }

  #leafRow(leaf: number, itemsIndex: number): Row {
    const lower = this.#model.leafSeconds(leaf, itemsIndex);
    return {
      lower,
      upper: Float64Array.from(this.grid, (level) => lower[level]!),
      exact: new Uint8Array(lower.length).fill(1),
    };
  }

  #compositeRow(set: PlanSet, itemsIndex: number): Row {
    const { grid } = this;
    const lowerAt = new Float64Array(grid.length).fill(Number.POSITIVE_INFINITY);
    const upperAt = new Float64Array(grid.length).fill(Number.POSITIVE_INFINITY);
    for (const { first, second, swap, independent } of set.cuts) {
      this.#checkDeadline();
      if (this.#operations.temporal) {
        const a = this.row(first, itemsIndex);
        const b = this.row(second, itemsIndex);
        for (let i = 0; i < grid.length; i++) {
          lowerAt[i] = Math.min(lowerAt[i]!, a.lower[grid[i]!]! + b.lower[grid[i]!]! + swap);
          upperAt[i] = Math.min(upperAt[i]!, a.upper[i]! + b.upper[i]! + swap);
        }
      }
      if (!this.#operations.spatial) continue;
      for (const chunking of this.#model.chunkings[itemsIndex]!) {
        if (mayHaveMoreStages(this.#model, second, chunking.count)) {
          this.tails.pipeline(first, second, chunking.itemsIndex, chunking.count, lowerAt, upperAt);
          continue;
        }
        const a = this.row(first, chunking.itemsIndex);
        const b = this.row(second, chunking.itemsIndex);
        this.#spatial(a, b, chunking.count, lowerAt, upperAt);
      }
      if (!this.#model.problem.parallelIndependent || !independent) continue;
      this.#spatial(this.row(first, itemsIndex), this.row(second, itemsIndex), 0, lowerAt, upperAt);
    }
    for (let i = 1; i < grid.length; i++) upperAt[i] = Math.min(upperAt[i]!, upperAt[i - 1]!);
    return { lower: this.spread(lowerAt), upper: upperAt, exact: new Uint8Array(this.#model.levels + 1) };
  }

  /** Lower bounds at grid levels, made to hold for every level: what is proven for a level holds for all below it. */
  spread(lowerAt: Float64Array): Float64Array {
    const { grid } = this;
    for (let i = grid.length - 2; i >= 0; i--) lowerAt[i] = Math.max(lowerAt[i]!, lowerAt[i + 1]!);
    const lower = new Float64Array(this.#model.levels + 1);
    lower[0] = Number.POSITIVE_INFINITY;
    for (let i = 0, level = 1; i < grid.length; i++) for (; level <= grid[i]!; level++) lower[level] = lowerAt[i]!;
    return lower;
  }

  /** Visits the classes of splits of `level`: the most that the first and the second part have in each. */
  forEachClass(level: number, visit: (first: number, second: number) => void): void {
    const { grid } = this;
    for (let i = 0, below = 0; below < level - 1; below = grid[i++]!)
      visit(Math.min(grid[i]!, level - 1), level - 1 - below);
  }

  /** Both bounds of splitting into `a` and `b`; `count` chunks, or 0 for side by side. */
  #spatial(a: Row, b: Row, count: number, lowerAt: Float64Array, upperAt: Float64Array): void {
    for (let i = 0; i < this.grid.length; i++) {
      const level = this.grid[i]!;
      if (level < 2) continue;
      if (spatialSeconds(a.lower[level - 1]!, b.lower[level - 1]!, count) >= upperAt[i]!) continue;
      const least = this.#leastOfClasses(a.lower, b.lower, level, count, Math.min(lowerAt[i]!, upperAt[i]!));
      if (least < lowerAt[i]!) lowerAt[i] = least;
      if (least >= upperAt[i]!) continue;
      const feasible = this.#leastOfSplits(a.upper, b.upper, level, count, upperAt[i]!);
      if (feasible < upperAt[i]!) upperAt[i] = feasible;
    }
  }

  /** Least lower bound over classes of splits, or at least `best` where none is below it. */
  #leastOfClasses(a: Float64Array, b: Float64Array, level: number, count: number, best: number): number {
    const { grid, floorIndex } = this;
    // The class of index i has its first part in (grid[i-1], grid[i]]; the last class is cut off at level - 1.
    const classes = floorIndex[level - 1]! + (grid[floorIndex[level - 1]!] === level - 1 ? 1 : 2);
    const firstAt = (i: number): number => a[Math.min(grid[i]!, level - 1)]!;
    const secondAt = (i: number): number => b[level - 1 - (i === 0 ? 0 : grid[i - 1]!)]!;
    let low = 0;
    let high = classes;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (firstAt(middle) <= secondAt(middle)) high = middle;
      else low = middle + 1;
    }
    // From the crossing outwards one side dominates; stop where that side alone is too slow.
    const weight = Math.max(1, count);
    const firstLeast = count === 0 ? Number.NEGATIVE_INFINITY : a[level - 1]!;
    const secondLeast = count === 0 ? Number.NEGATIVE_INFINITY : b[level - 1]!;
    for (let i = low; i < classes; i++) {
      const second = secondAt(i);
      if (dominated(second, weight, firstLeast) >= best) break;
      best = Math.min(best, spatialSeconds(firstAt(i), second, count));
      this.evaluations++;
    }
    for (let i = low - 1; i >= 0; i--) {
      const first = firstAt(i);
      if (dominated(first, weight, secondLeast) >= best) break;
      best = Math.min(best, spatialSeconds(first, secondAt(i), count));
      this.evaluations++;
    }
    return best;
  }

  /** Least upper bound over splits whose first part is a grid level. */
  #leastOfSplits(a: Float64Array, b: Float64Array, level: number, count: number, best: number): number {
    const { grid, floorIndex } = this;
    const splits = floorIndex[level - 1]! + 1;
    const secondAt = (i: number): number => b[floorIndex[level - grid[i]!]!]!;
    let low = 0;
    let high = splits;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (a[middle]! <= secondAt(middle)) high = middle;
      else low = middle + 1;
    }
    const weight = Math.max(1, count);
    const firstLeast = count === 0 ? Number.NEGATIVE_INFINITY : a[splits - 1]!;
    const secondLeast = count === 0 ? Number.NEGATIVE_INFINITY : secondAt(0);
    for (let i = low; i < splits; i++) {
      const second = secondAt(i);
      if (dominated(second, weight, firstLeast) >= best) break;
      best = Math.min(best, spatialSeconds(a[i]!, second, count));
    }
    for (let i = low - 1; i >= 0; i--) {
      if (dominated(a[i]!, weight, secondLeast) >= best) break;
      best = Math.min(best, spatialSeconds(a[i]!, secondAt(i), count));
    }
    return best;
  }
}

/** Whether a pipeline's second part may itself be several stages; with one chunk that changes nothing. */
export function mayHaveMoreStages(model: PlanModel, second: PlanSet, count: number): boolean {
  return model.problem.pipeline === "kway" && second.leaf < 0 && count > 1;
}

/** A pipeline of `count` chunks, or two parts side by side where `count` is 0. */
export function spatialSeconds(first: number, second: number, count: number): number {
  return count === 0 ? Math.max(first, second) : pipelineSeconds(first, second, count);
}

function dominated(slow: number, weight: number, otherLeast: number): number {
  return otherLeast === Number.NEGATIVE_INFINITY ? slow : weight * slow + otherLeast;
}
