/**
 * Lower and upper bounds of F(subgraph, devices, items) for the fast search.
 *
 * F never grows with devices (idle ones are allowed), so one value bounds a whole range of device counts: from below it
 * holds for fewer devices, from above for more. Bounds are therefore computed on a grid of levels, dense at the small end
 * and geometric above. At a grid level a pipeline's splits fall into classes, those whose first part lies between two
 * grid levels; a class is bounded below by its most generous reading (both parts rounded up) and above by one member of
 * it. Where the grid has every level, both bounds are exact.
 *
 * A limit on the whole's seconds limits every part's. In any schedule a subgraph that is given m items at a time runs
 * batch/m times, and never twice at once; and of every other component at least one chunk comes before or after, unless
 * parts may run side by side or steps overlap. So the whole takes at least batch/m times the subgraph's seconds and, of
 * each of the others, those of its fastest chunk on all devices. A row is therefore made from the most levels down, and
 * ends where that sum is beyond the limit: below are only schedules that nobody wants.
 */
import type { Grid } from "./grid.ts";
import { type Cut, leafOf, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import type { Allowed, Outside } from "./outside.ts";
import { type Tail, Tails, tailBound } from "./tails.ts";

/**
 * Bounds of one (subgraph, items) by grid index; neither grows with the level. Of a single component both are its
 * seconds, by level.
 */
export type GridRow = {
  /** proven: F is at least this */
  readonly lower: Float64Array;
  /** F is at most this */
  readonly upper: Float64Array;
  readonly byLevel: boolean;
};

/** The same for a search, which tightens it. */
export type Row = {
  /** by level; entry 0 is Infinity */
  readonly lower: Float64Array;
  /** by level: whether `lower` is F itself */
  readonly exact: Uint8Array;
};

/** Thrown out of deep recursion when the deadline has passed; caught where a best-effort answer is put together. */
export class DeadlinePassed extends Error {}

/** A cut whose parts own devices, in chunks of one size; `count` 0 is side by side. */
type Way = {
  readonly a: GridRow;
  readonly b: GridRow;
  readonly count: number;
  readonly free: boolean;
  readonly tail: Tail | undefined;
};

export type BoundsOptions = {
  /** without lower bounds nothing can be proven, and making rows takes half the time */
  readonly needsLower?: boolean;
  /** seconds of the whole above which nothing is asked */
  readonly limit?: number;
  /** what schedules within the limit have, by coarser bounds */
  readonly outside?: Outside | undefined;
};

/** So that what takes just the limit is not lost by rounding. */
export const limitSlack = 1e-9;

export class Bounds {
  readonly grid: Grid;
  readonly tails: Tails;
  readonly needsLower: boolean;
  readonly #model: PlanModel;
  readonly #operations: Operations;
  readonly #checkDeadline: () => void;
  readonly #limit: number;
  readonly #outside: Outside | undefined;
  /** by component, seconds of its fastest chunk on all devices, where they add to those of every other */
  readonly #fastest: readonly number[];
  /** by the index of the subgraph, then by items index */
  readonly #gridRows: GridRow[][] = [];
  readonly #rows: Row[][] = [];
  /** of what is in no schedule within the limit */
  readonly #never: GridRow;
  readonly #neverByLevel: Row;
  evaluations = 0;

  constructor(
    model: PlanModel,
    operations: Operations,
    grid: Grid,
    checkDeadline: () => void,
    { needsLower = true, limit = Number.POSITIVE_INFINITY, outside }: BoundsOptions = {},
  ) {
    this.#outside = outside;
    this.needsLower = needsLower;
    this.#model = model;
    this.#operations = operations;
    this.#checkDeadline = checkDeadline;
    this.#limit = limit * (1 + limitSlack);
    const { objective, problem, dag, items, levels } = model;
    const adds = objective === "step" && !problem.parallelIndependent;
    this.#fastest = dag.components.map((_, component) =>
      adds ? Math.min(...items.map((_, i) => model.leafSeconds(component, i)[levels]!)) : 0,
    );
    this.grid = grid;
    this.tails = new Tails(model, this);
    const never = (length: number): Float64Array => new Float64Array(length).fill(Number.POSITIVE_INFINITY);
    this.#never = { lower: never(grid.levels.length), upper: never(grid.levels.length), byLevel: false };
    this.#neverByLevel = { lower: never(levels + 1), exact: new Uint8Array(levels + 1) };
  }

  numRows(): number {
    return this.#gridRows.flat().length;
  }

  gridRow(set: PlanSet, itemsIndex: number): GridRow {
    const rows = this.#gridRows[set.index] ?? [];
    this.#gridRows[set.index] = rows;
    const known = rows[itemsIndex];
    if (known !== undefined) return known;
    let row: GridRow;
    if (set.single) {
      const seconds = this.#model.leafSeconds(set.leaf, itemsIndex);
      row = { lower: seconds, upper: seconds, byLevel: true };
    } else row = this.#compositeRow(set, itemsIndex);
    rows[itemsIndex] = row;
    return row;
  }

  row(set: PlanSet, itemsIndex: number): Row {
    const rows = this.#rows[set.index] ?? [];
    this.#rows[set.index] = rows;
    const known = rows[itemsIndex];
    if (known !== undefined) return known;
    const gridRow = this.gridRow(set, itemsIndex);
    if (gridRow === this.#never) {
      rows[itemsIndex] = this.#neverByLevel;
      return this.#neverByLevel;
    }
    const { lower, byLevel } = gridRow;
    const row = { lower: byLevel ? lower : this.#spread(lower), exact: new Uint8Array(this.#model.levels + 1) };
    if (byLevel) row.exact.fill(1);
    rows[itemsIndex] = row;
    return row;
  }

  /** What is proven for a level holds for all below it. */
  #spread(lower: Float64Array): Float64Array {
    const { levels } = this.grid;
    const all = new Float64Array(this.#model.levels + 1);
    all[0] = Number.POSITIVE_INFINITY;
    for (let g = 0; g < levels.length; g++) all.fill(lower[g]!, g === 0 ? 1 : levels[g - 1]! + 1, levels[g]! + 1);
    return all;
  }

  /** The row's `lower` at a level, without making it by level where nobody has yet. */
  lowerAt(set: PlanSet, itemsIndex: number, level: number): number {
    const row = this.#rows[set.index]?.[itemsIndex];
    if (row !== undefined) return row.lower[level]!;
    const { lower, byLevel } = this.gridRow(set, itemsIndex);
    return lower[byLevel ? level : this.grid.ceilIndex[level]!]!;
  }

  upperAt(set: PlanSet, itemsIndex: number, level: number): number {
    const { upper, byLevel } = this.gridRow(set, itemsIndex);
    return upper[byLevel ? level : this.grid.floorIndex[level]!]!;
  }

  /** What is found for a level holds for all grid levels from there on. */
  lowerUpper(set: PlanSet, itemsIndex: number, level: number, value: number): void {
    const { upper } = this.gridRow(set, itemsIndex);
    for (let i = this.grid.ceilIndex[level]!; i < upper.length && upper[i]! > value; i++) upper[i] = value;
  }

  #compositeRow(set: PlanSet, itemsIndex: number): GridRow {
    const { levels } = this.grid;
    const leaf = leafOf(set, this.#operations);
    const asOne = leaf >= 0 ? this.#model.leafSeconds(leaf, itemsIndex) : undefined;
    const allowed = this.#allowed(set, itemsIndex);
    if (allowed === undefined) return this.#never;
    // Beyond the cutoff nothing is asked, so it bounds what is not looked at.
    const { most: cutoff, beyond, from, to } = allowed;
    const [bottom, top] = [this.grid.floorIndex[from]!, this.grid.ceilIndex[to]!];
    const lower = new Float64Array(levels.length).fill(beyond);
    const upper = new Float64Array(levels.length).fill(Number.POSITIVE_INFINITY);
    const turns = this.#operations.temporal ? set.cuts.filter((cut) => cut.turns) : [];
    const firsts = turns.map((cut) => this.gridRow(cut.turnFirst, itemsIndex));
    const seconds = turns.map((cut) => this.gridRow(cut.turnSecond, itemsIndex));
    const ways = this.#operations.spatial ? this.#waysOf(set, itemsIndex, cutoff) : [];
    let numWays = ways.length;
    for (let g = top; g >= bottom; g--) {
      const level = levels[g]!;
      const here = allowed.mostOn(g === 0 ? 1 : levels[g - 1]! + 1, level);
      const within = Math.min(cutoff, here);
      let least = Math.min(within, asOne?.[level] ?? within);
      let most = asOne?.[level] ?? Number.POSITIVE_INFINITY;
      // Turns first: what they achieve rules most splits out at a glance.
      for (let i = 0; i < turns.length; i++) {
        const [a, b] = [firsts[i]!, seconds[i]!];
        const aAt = a.byLevel ? level : g;
        const bAt = b.byLevel ? level : g;
        const swap = swapAt(turns[i]!, level);
        if (this.needsLower) least = Math.min(least, a.lower[aAt]! + b.lower[bAt]! + swap);
        most = Math.min(most, a.upper[aAt]! + b.upper[bAt]! + swap);
      }
      let kept = 0;
      let best = -1;
      for (let i = 0; i < numWays; i++) {
        const way = ways[i]!;
        const { a, b, count, free, tail } = way;
        const glance =
          tail === undefined ? this.#glance(a, b, count, free, level) : this.#glanceOfStages(way, tail, level);
        // It only gets slower on fewer devices.
        if (glance >= cutoff) continue;
        ways[kept++] = way;
        if (glance >= (this.needsLower ? least : most)) continue;
        const found = this.needsLower ? this.#leastOf(way, g, least) : this.#mostOf(way, g, most);
        if (found >= (this.needsLower ? least : most)) continue;
        best = kept - 1;
        if (this.needsLower) least = found;
        else most = found;
      }
      // Where there are lower bounds, what has the least of them also shows what can be achieved.
      if (this.needsLower && best >= 0) most = this.#mostOf(ways[best]!, g, most);
      numWays = kept;
      // What is best on one level is near it on the next, and rules the others out.
      if (best > 0) [ways[0], ways[best]] = [ways[best]!, ways[0]!];
      lower[g] = least;
      upper[g] = most;
      if ((this.needsLower ? least : most) >= cutoff) break;
    }
    lower.fill(lower[top]!, top + 1);
    for (let g = top - 1; g >= 0; g--) lower[g] = Math.max(lower[g]!, lower[g + 1]!);
    for (let g = 1; g < levels.length; g++) upper[g] = Math.min(upper[g]!, upper[g - 1]!);
    return { lower: this.needsLower ? lower : noLower, upper, byLevel: false };
  }

  /** Levels beyond the range are in no schedule within the limit, so that any value of theirs will do. */
  #allowed(set: PlanSet, itemsIndex: number): (Allowed & { readonly beyond: number }) | undefined {
    const most = this.#cutoff(set, itemsIndex);
    if (this.#outside === undefined)
      return { most, beyond: most, from: 1, to: this.#model.levels, mostOn: () => Number.POSITIVE_INFINITY };
    const allowed = this.#outside.of(set, itemsIndex);
    return allowed && { ...allowed, most: Math.min(most, allowed.most), beyond: Number.POSITIVE_INFINITY };
  }

  /** Seconds above which a subgraph is in no schedule within the limit, but no fewer than it takes. */
  #cutoff({ mask }: PlanSet, itemsIndex: number): number {
    if (this.#limit === Number.POSITIVE_INFINITY) return this.#limit;
    const { items } = this.#model;
    let [own, others] = [0, 0];
    for (const [component, seconds] of this.#fastest.entries()) {
      if ((mask & (1 << component)) === 0) others += seconds;
      else own += seconds;
    }
    return Math.max(own, ((this.#limit - others) * items[itemsIndex]!) / items[0]!);
  }

  /** Those that can be below `cutoff` on all levels: fewer make none faster. */
  #waysOf(set: PlanSet, itemsIndex: number, cutoff: number): Way[] {
    const ways: Way[] = [];
    const { chunkings, problem, levels } = this.#model;
    const add = (cut: Cut, chunkIndex: number, count: number): void => {
      const [a, b] = [this.gridRow(cut.first, chunkIndex), this.gridRow(cut.second, chunkIndex)];
      const more = mayHaveMoreStages(this.#model, cut.second, count);
      if (!more && this.#glance(a, b, count, cut.free, levels) >= cutoff) return;
      const tail = more ? this.tails.tail(cut.second, chunkIndex, count) : undefined;
      ways.push({ a, b, count, free: cut.free, tail });
    };
    for (const cut of set.cuts) {
      if (!cut.beside) continue;
      this.#checkDeadline();
      for (const { itemsIndex: chunkIndex, count } of chunkings[itemsIndex]!) add(cut, chunkIndex, count);
      if (problem.parallelIndependent && cut.independent) add(cut, itemsIndex, 0);
    }
    return ways;
  }

  /** No more than any split of `level` in two takes: both parts have all that one could have. */
  #glance(a: GridRow, b: GridRow, count: number, free: boolean, level: number): number {
    const each = free ? level : level - 1;
    if (each === 0) return Number.POSITIVE_INFINITY;
    const { floorIndex, ceilIndex } = this.grid;
    const index = this.needsLower ? ceilIndex[each]! : floorIndex[each]!;
    const first = (this.needsLower ? a.lower : a.upper)[a.byLevel ? each : index]!;
    const second = (this.needsLower ? b.lower : b.upper)[b.byLevel ? each : index]!;
    return spatialSeconds(this.#model.objective, first, second, count);
  }

  /** The same of a pipeline that may have more stages. */
  #glanceOfStages({ a, count, free }: Way, tail: Tail, level: number): number {
    const each = free ? level : level - 1;
    if (each === 0) return Number.POSITIVE_INFINITY;
    const index = this.grid.ceilIndex[each]!;
    if (!this.needsLower) return 0;
    const first = a.lower[a.byLevel ? each : index]!;
    return tailBound(first, first, tail, index, count);
  }

  /** Least lower bound over classes of splits, or `limit` where none is below it. */
  #leastOf({ a, b, count, free, tail }: Way, g: number, limit: number): number {
    const { firstLevel, firstIndex, secondLevel, secondIndex } = this.grid.classes(g, free);
    const firstAt = a.byLevel ? firstLevel : firstIndex;
    if (tail === undefined)
      return this.#leastSplit(a.lower, firstAt, b.lower, b.byLevel ? secondLevel : secondIndex, count, limit);
    let best = limit;
    for (let i = 0; i < firstAt.length; i++) {
      const seconds = a.lower[firstAt[i]!]!;
      best = Math.min(best, tailBound(seconds, seconds, tail, secondIndex[i]!, count));
    }
    return best;
  }

  /** Least upper bound over splits whose first part is a grid level, or `limit` where none is below it. */
  #mostOf({ a, b, count, free, tail }: Way, g: number, limit: number): number {
    const { firstLevel, firstIndex, secondLevel, secondIndex } = this.grid.members(g, free);
    const firstAt = a.byLevel ? firstLevel : firstIndex;
    if (tail === undefined)
      return this.#leastSplit(a.upper, firstAt, b.upper, b.byLevel ? secondLevel : secondIndex, count, limit);
    let best = limit;
    for (let i = 0; i < firstAt.length; i++) {
      const seconds = a.upper[firstAt[i]!]!;
      const max = Math.max(seconds, tail.upperMax[secondIndex[i]!]!);
      best = Math.min(best, seconds + tail.upperSum[secondIndex[i]!]! + (count - 1) * max);
    }
    return best;
  }

  /**
   * The least over splits of which part i takes `a[aAt[i]]` and `b[bAt[i]]` seconds, or `limit`. The first only gets
   * faster with i and the second slower. From the crossing outwards one of them dominates, so each walk stops where that
   * one, `weight` times, and the least of the other are too slow already.
   */
  #leastSplit(
    a: Float64Array,
    aAt: Int32Array,
    b: Float64Array,
    bAt: Int32Array,
    count: number,
    limit: number,
  ): number {
    const numSplits = aAt.length;
    if (numSplits === 0) return limit;
    const { objective } = this.#model;
    const weight = count === 0 ? 1 : count;
    // Where only the slower part counts, the other one adds nothing.
    const adds = count > 0 && objective === "step";
    const firstLeast = adds ? a[aAt[numSplits - 1]!]! : 0;
    const secondLeast = adds ? b[bAt[0]!]! : 0;
    let [from, to] = [0, numSplits];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (a[aAt[middle]!]! <= b[bAt[middle]!]!) to = middle;
      else from = middle + 1;
    }
    let best = limit;
    for (let i = from; i < numSplits; i++) {
      const second = b[bAt[i]!]!;
      if (weight * second + firstLeast >= best) break;
      const seconds = spatialSeconds(objective, a[aAt[i]!]!, second, count);
      if (seconds < best) best = seconds;
      this.evaluations++;
    }
    for (let i = from - 1; i >= 0; i--) {
      const first = a[aAt[i]!]!;
      if (weight * first + secondLeast >= best) break;
      const seconds = spatialSeconds(objective, first, b[bAt[i]!]!, count);
      if (seconds < best) best = seconds;
      this.evaluations++;
    }
    return best;
  }
}

const noLower = new Float64Array(0);

/** Whether a pipeline's second part may itself be several stages; with one chunk that changes nothing. */
export function mayHaveMoreStages(model: PlanModel, second: PlanSet, count: number): boolean {
  return model.kway && !second.single && count > 1;
}
