/**
 * Lower and upper bounds of F(subgraph, devices, items) for the fast search.
 *
 * F never grows with devices (idle ones are allowed), so one value bounds a whole range of device counts: from below it
 * holds for fewer devices, from above for more. Bounds are therefore computed on a grid of levels, dense at the small end
 * and geometric above. At a grid level a pipeline's splits fall into classes, those whose first part lies between two
 * grid levels; a class is bounded below by its most generous reading (both parts rounded up) and above by one member of
 * it. Where the grid has every level, both bounds are exact.
 */
import { type Cut, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import { Tails } from "./tails.ts";

/** Bounds of one (subgraph, items), by level. */
export type Row = {
  /** proven: F is at least this; never grows with the level. Entry 0 is Infinity. Empty where none are made */
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
  readonly needsLower: boolean;
  readonly #model: PlanModel;
  readonly #operations: Operations;
  readonly #checkDeadline: () => void;
  readonly #rows: (Row | undefined)[] = [];
  evaluations = 0;

  /** `needsLower`: without lower bounds nothing can be proven, and making rows takes half the time. */
  constructor(
    model: PlanModel,
    operations: Operations,
    grid: Int32Array,
    checkDeadline: () => void,
    needsLower = true,
  ) {
    this.needsLower = needsLower;
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
      row = set.single ? this.#leafRow(set.leaf, itemsIndex) : this.#compositeRow(set, itemsIndex);
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
    const asOne = set.leaf >= 0 ? this.#model.leafSeconds(set.leaf, itemsIndex) : undefined;
    const lowerAt = Float64Array.from(grid, (level) => asOne?.[level] ?? Number.POSITIVE_INFINITY);
    const upperAt = Float64Array.from(lowerAt);
    // Turns first: what they achieve rules most splits out at a glance.
    for (const cut of this.#operations.temporal ? set.cuts : []) {
      if (!cut.turns) continue;
      this.#checkDeadline();
      const a = this.row(cut.turnFirst, itemsIndex);
      const b = this.row(cut.turnSecond, itemsIndex);
      for (let i = 0; i < grid.length; i++) {
        const swap = swapAt(cut, grid[i]!);
        if (this.needsLower) lowerAt[i] = Math.min(lowerAt[i]!, a.lower[grid[i]!]! + b.lower[grid[i]!]! + swap);
        upperAt[i] = Math.min(upperAt[i]!, a.upper[i]! + b.upper[i]! + swap);
      }
    }
    for (const cut of this.#operations.spatial ? set.cuts : []) {
      if (!cut.beside) continue;
      this.#checkDeadline();
      for (const chunking of this.#model.chunkings[itemsIndex]!) {
        if (mayHaveMoreStages(this.#model, cut.second, chunking.count)) {
          this.tails.pipeline(cut, chunking.itemsIndex, chunking.count, lowerAt, upperAt);
        } else this.#spatial(cut, chunking.itemsIndex, chunking.count, lowerAt, upperAt);
      }
      if (this.#model.problem.parallelIndependent && cut.independent)
        this.#spatial(cut, itemsIndex, 0, lowerAt, upperAt);
    }
    for (let i = 1; i < grid.length; i++) upperAt[i] = Math.min(upperAt[i]!, upperAt[i - 1]!);
    if (!this.needsLower) return { lower: noLower, upper: upperAt, exact: unproven };
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
  forEachClass(cut: Cut, level: number, visit: (first: number, second: number) => void): void {
    const { grid } = this;
    if (cut.free) {
      visit(level, level);
      return;
    }
    for (let i = 0, below = 0; below < level - 1; below = grid[i++]!)
      visit(Math.min(grid[i]!, level - 1), level - 1 - below);
  }

  /** Both bounds of splitting in two; `count` chunks, or 0 for side by side. */
  #spatial(cut: Cut, itemsIndex: number, count: number, lowerAt: Float64Array, upperAt: Float64Array): void {
    const { grid } = this;
    const { objective } = this.#model;
    const a = this.row(cut.first, itemsIndex);
    const b = this.row(cut.second, itemsIndex);
    if (cut.free) {
      for (let i = 0; i < grid.length; i++) {
        const found = spatialSeconds(objective, a.upper[i]!, b.upper[i]!, count);
        if (this.needsLower) {
          const least = spatialSeconds(objective, a.lower[grid[i]!]!, b.lower[grid[i]!]!, count);
          lowerAt[i] = Math.min(lowerAt[i]!, least);
        }
        upperAt[i] = Math.min(upperAt[i]!, found);
      }
      return;
    }
    // The crossing, the first class or split whose first part is the faster one, only moves up with the level.
    let classCrossing = 0;
    let splitCrossing = 0;
    for (let i = 0; i < grid.length; i++) {
      const level = grid[i]!;
      if (level < 2) continue;
      const most = this.floorIndex[level - 1]!;
      const least = this.needsLower
        ? spatialSeconds(objective, a.lower[level - 1]!, b.lower[level - 1]!, count)
        : spatialSeconds(objective, a.upper[most]!, b.upper[most]!, count);
      if (least >= upperAt[i]!) continue;
      if (this.needsLower && least < lowerAt[i]!) {
        classCrossing = this.#classCrossing(a.lower, b.lower, level, classCrossing);
        lowerAt[i] = this.#leastOfClasses(a.lower, b.lower, level, count, lowerAt[i]!, classCrossing);
      }
      splitCrossing = this.#splitCrossing(a.upper, b.upper, level, splitCrossing);
      upperAt[i] = this.#leastOfSplits(a.upper, b.upper, level, count, upperAt[i]!, splitCrossing);
    }
  }

  /** The class of index i has its first part in (grid[i-1], grid[i]]; the last class is cut off at level - 1. */
  #numClasses(level: number): number {
    const last = this.floorIndex[level - 1]!;
    return this.grid[last] === level - 1 ? last + 1 : last + 2;
  }

  #classCrossing(a: Float64Array, b: Float64Array, level: number, from: number): number {
    const { grid } = this;
    const classes = this.#numClasses(level);
    let i = from;
    while (i < classes && a[Math.min(grid[i]!, level - 1)]! > b[level - 1 - (i === 0 ? 0 : grid[i - 1]!)]!) i++;
    return i;
  }

  /**
   * Least lower bound over classes of splits, or `best` where none is below it. From the crossing outwards one side
   * dominates, so each walk stops where that side, `weight` times, and the least of the other are too slow already.
   */
  #leastOfClasses(
    a: Float64Array,
    b: Float64Array,
    level: number,
    count: number,
    limit: number,
    crossing: number,
  ): number {
    const { grid } = this;
    const classes = this.#numClasses(level);
    const { objective } = this.#model;
    const weight = count === 0 ? 1 : count;
    // Where only the slower part counts, the other one adds nothing.
    const adds = count > 0 && objective === "step";
    const firstLeast = !adds ? 0 : a[level - 1]!;
    const secondLeast = !adds ? 0 : b[level - 1]!;
    let best = limit;
    for (let i = crossing; i < classes; i++) {
      const second = b[level - 1 - (i === 0 ? 0 : grid[i - 1]!)]!;
      if (weight * second + firstLeast >= best) break;
      const seconds = spatialSeconds(objective, a[Math.min(grid[i]!, level - 1)]!, second, count);
      if (seconds < best) best = seconds;
      this.evaluations++;
    }
    for (let i = crossing - 1; i >= 0; i--) {
      const first = a[Math.min(grid[i]!, level - 1)]!;
      if (weight * first + secondLeast >= best) break;
      const seconds = spatialSeconds(objective, first, b[level - 1 - (i === 0 ? 0 : grid[i - 1]!)]!, count);
      if (seconds < best) best = seconds;
      this.evaluations++;
    }
    return best;
  }

  #splitCrossing(a: Float64Array, b: Float64Array, level: number, from: number): number {
    const { grid, floorIndex } = this;
    const splits = floorIndex[level - 1]! + 1;
    let i = from;
    while (i < splits && a[i]! > b[floorIndex[level - grid[i]!]!]!) i++;
    return i;
  }

  /** Least upper bound over splits whose first part is a grid level, or `best` where none is below it. */
  #leastOfSplits(
    a: Float64Array,
    b: Float64Array,
    level: number,
    count: number,
    limit: number,
    crossing: number,
  ): number {
    const { grid, floorIndex } = this;
    const splits = floorIndex[level - 1]! + 1;
    const { objective } = this.#model;
    const weight = count === 0 ? 1 : count;
    // Where only the slower part counts, the other one adds nothing.
    const adds = count > 0 && objective === "step";
    const firstLeast = !adds ? 0 : a[splits - 1]!;
    const secondLeast = !adds ? 0 : b[floorIndex[level - 1]!]!;
    let best = limit;
    for (let i = crossing; i < splits; i++) {
      const second = b[floorIndex[level - grid[i]!]!]!;
      if (weight * second + firstLeast >= best) break;
      const seconds = spatialSeconds(objective, a[i]!, second, count);
      if (seconds < best) best = seconds;
    }
    for (let i = crossing - 1; i >= 0; i--) {
      if (weight * a[i]! + secondLeast >= best) break;
      const seconds = spatialSeconds(objective, a[i]!, b[floorIndex[level - grid[i]!]!]!, count);
      if (seconds < best) best = seconds;
    }
    return best;
  }
}

const noLower = new Float64Array(0);
const unproven = new Uint8Array(0);

/** Whether a pipeline's second part may itself be several stages; with one chunk that changes nothing. */
export function mayHaveMoreStages(model: PlanModel, second: PlanSet, count: number): boolean {
  return model.kway && !second.single && count > 1;
}
