/**
 * The fast exact search: best-first branch and bound over cut x chunk x split.
 *
 * A state (subgraph, level, items) is asked with a limit: afterwards either its value is exact, or it is proven to be at
 * least the limit (`Row.lower` says so). A candidate of a state is a temporal cut, or a cut, a chunk and a range of
 * splits. A range is bounded below by giving its first part the most and its second part the most devices of the range;
 * it is halved until one split is left, whose parts are then asked, each with the largest limit that can still win.
 * Values only ever tighten, so every answer is memoised for all later limits.
 */
import { type Bounds, DeadlinePassed, type Row, spatialSeconds } from "./bounds.ts";
import type { Cut, Operations, PlanModel, PlanSet } from "./model.ts";
import type { Schedule } from "./problem.ts";

/** How a state's exact value comes about. `count` 0 is side by side; `chunkIndex` -1 is temporal. */
type Candidate = {
  bound: number;
  readonly cut: Cut;
  readonly chunkIndex: number;
  readonly count: number;
  /** levels of the first part; the whole state's level when temporal */
  readonly low: number;
  readonly high: number;
};

export class Search {
  readonly #model: PlanModel;
  readonly #bounds: Bounds;
  readonly #operations: Operations;
  readonly #checkDeadline: () => void;
  readonly #choices = new Map<number, Candidate>();
  /** the best complete candidate of the root, kept up to date for an early stop */
  #incumbent: { readonly time: number; readonly choice: Candidate } | undefined;
  states = 0;
  candidates = 0;

  constructor(model: PlanModel, bounds: Bounds, operations: Operations, checkDeadline: () => void) {
    this.#model = model;
    this.#bounds = bounds;
    this.#operations = operations;
    this.#checkDeadline = checkDeadline;
  }

  /** The least time and a schedule of it; on a passed deadline the best so far, with `bound` below `time`. */
  run(): { time: number; schedule: Schedule | null; bound: number } {
    const { all, levels } = this.#model;
    const row = this.#bounds.row(all, 0);
    try {
      this.#solve(all, levels, 0, Number.POSITIVE_INFINITY, true);
    } catch (error) {
      if (!(error instanceof DeadlinePassed)) throw error;
      const upper = row.upper.at(-1)!;
      const bound = row.lower[levels]!;
      if (this.#incumbent !== undefined && this.#incumbent.time <= upper) {
        const { time, choice } = this.#incumbent;
        return { time, schedule: this.#compose(choice, all, levels, 0), bound };
      }
      return {
        time: upper,
        schedule: upper === Number.POSITIVE_INFINITY ? null : this.#upperSchedule(all, levels, 0),
        bound,
      };
    }
    const time = row.lower[levels]!;
    return { time, schedule: time === Number.POSITIVE_INFINITY ? null : this.#schedule(all, levels, 0), bound: time };
  }

  #solve(set: PlanSet, level: number, itemsIndex: number, limit: number, root: boolean): void {
    const row = this.#bounds.row(set, itemsIndex);
    if (row.exact[level] === 1 || row.lower[level]! >= limit) return;
    this.states++;
    const upper = row.upper[this.#bounds.floorIndex[level]!]!;
    // Something at most `upper` exists, so nothing above it needs to be looked at; the slack keeps that something.
    const hint = upper + Math.abs(upper) * 1e-12 + Number.MIN_VALUE;
    const found =
      this.#best(set, level, itemsIndex, Math.min(limit, hint), row, root) ??
      (hint < limit ? this.#best(set, level, itemsIndex, limit, row, root) : undefined);
    if (found !== undefined) {
      row.exact[level] = 1;
      raiseLower(row, level, found.bound);
      this.#choices.set(this.#key(set, level, itemsIndex), found);
      const { grid, floorIndex } = this.#bounds;
      let i = floorIndex[level]!;
      if (grid[i] !== level) i++;
      for (; i < grid.length && row.upper[i]! > found.bound; i++) row.upper[i] = found.bound;
    } else if (limit === Number.POSITIVE_INFINITY && upper === Number.POSITIVE_INFINITY) {
      row.exact[level] = 1;
      raiseLower(row, level, Number.POSITIVE_INFINITY);
    } else {
      raiseLower(row, level, limit);
    }
  }

  /** The best candidate below `limit`, its `bound` being the state's value; undefined where there is none. */
  #best(
    set: PlanSet,
    level: number,
    itemsIndex: number,
    limit: number,
    row: Row,
    root: boolean,
  ): Candidate | undefined {
    const heap: Candidate[] = [];
    let best = limit;
    let choice: Candidate | undefined;
    for (const cut of set.cuts) {
      if (this.#operations.temporal) {
        const bound = this.#bound(cut, itemsIndex, -1, level, level, level, 0);
        if (bound < best) push(heap, { bound, cut, chunkIndex: -1, count: 0, low: level, high: level });
      }
      if (!this.#operations.spatial || level < 2) continue;
      for (const { itemsIndex: chunkIndex, count } of this.#model.chunkings[itemsIndex]!) {
        this.#pushWindow(heap, cut, chunkIndex, count, level, best);
      }
      if (this.#model.problem.parallelIndependent && cut.independent)
        this.#pushWindow(heap, cut, itemsIndex, 0, level, best);
    }
    while (heap.length > 0) {
      const candidate = pop(heap);
      if (candidate.bound >= best) break;
      if (root) row.lower[level] = Math.max(row.lower[level]!, candidate.bound);
      this.candidates++;
      if ((this.candidates & 63) === 0) this.#checkDeadline();
      const { cut, chunkIndex, count, low, high } = candidate;
      if (low < high) {
        const middle = (low + high) >> 1;
        for (const [from, to] of [
          [low, middle],
          [middle + 1, high],
        ] as const) {
          const bound = this.#bound(cut, itemsIndex, chunkIndex, from, to, level, count);
          this.candidates++;
          if (bound < best) push(heap, { bound, cut, chunkIndex, count, low: from, high: to });
        }
        continue;
      }
      const bound = this.#settle(candidate, level, itemsIndex, best, heap[0]?.bound ?? Number.POSITIVE_INFINITY);
      candidate.bound = bound;
      if (bound >= best) continue;
      if (!this.#settled(candidate, level, itemsIndex)) {
        push(heap, candidate);
        continue;
      }
      best = bound;
      choice = candidate;
      if (root) this.#incumbent = { time: best, choice };
    }
    return choice;
  }

  /** The splits of one cut and chunk that can beat `best`, found by what each side alone would cost. */
  #pushWindow(heap: Candidate[], cut: Cut, chunkIndex: number, count: number, level: number, best: number): void {
    const a = this.#bounds.row(cut.first, chunkIndex).lower;
    const b = this.#bounds.row(cut.second, chunkIndex).lower;
    if (spatialSeconds(a[level - 1]!, b[level - 1]!, count) >= best) return;
    const alone = (slow: number, other: number): number => (count === 0 ? slow : count * slow + other);
    const [aLeast, bLeast] = [a[level - 1]!, b[level - 1]!];
    const low = firstLevel(1, level, (first) => alone(a[first]!, bLeast) < best);
    const secondLow = firstLevel(1, level, (second) => alone(b[second]!, aLeast) < best);
    const high = level - secondLow;
    if (low > high) return;
    const bound = spatialSeconds(a[high]!, b[level - low]!, count);
    this.candidates++;
    if (bound < best) push(heap, { bound, cut, chunkIndex, count, low, high });
  }

  #bound(
    cut: Cut,
    itemsIndex: number,
    chunkIndex: number,
    low: number,
    high: number,
    level: number,
    count: number,
  ): number {
    const temporal = chunkIndex < 0;
    const a = this.#bounds.row(cut.first, temporal ? itemsIndex : chunkIndex).lower;
    const b = this.#bounds.row(cut.second, temporal ? itemsIndex : chunkIndex).lower;
    return temporal ? a[level]! + b[level]! + cut.swap : spatialSeconds(a[high]!, b[level - low]!, count);
  }

  /** Asks the parts of a single split until it is settled, is no better than `best`, or falls behind `next`. */
  #settle(candidate: Candidate, level: number, itemsIndex: number, best: number, next: number): number {
    const { cut, chunkIndex, count, low } = candidate;
    const temporal = chunkIndex < 0;
    const partItems = temporal ? itemsIndex : chunkIndex;
    const [firstLevelOf, secondLevelOf] = temporal ? [level, level] : [low, level - low];
    const a = this.#bounds.row(cut.first, partItems);
    const b = this.#bounds.row(cut.second, partItems);
    for (;;) {
      const [x, y] = [a.lower[firstLevelOf]!, b.lower[secondLevelOf]!];
      const bound = temporal ? x + y + cut.swap : spatialSeconds(x, y, count);
      const firstOpen = a.exact[firstLevelOf] === 0;
      if (bound >= best || bound > next || (!firstOpen && b.exact[secondLevelOf] === 1)) return bound;
      // The smaller subgraph first: it costs least and may already rule the split out.
      const askFirst =
        firstOpen && (b.exact[secondLevelOf] === 1 || bitCount(cut.first.mask) <= bitCount(cut.second.mask));
      const [set, row, at] = askFirst ? [cut.first, a, firstLevelOf] : [cut.second, b, secondLevelOf];
      const other = askFirst ? y : x;
      const limit = temporal ? best - cut.swap - other : largestUseful(best, other, count);
      this.#solve(set, at, partItems, limit, false);
      // Not exact means at least the limit, so the split cannot win, up to rounding.
      if (row.exact[at] === 0) return best;
    }
  }

  #settled({ cut, chunkIndex, low }: Candidate, level: number, itemsIndex: number): boolean {
    const temporal = chunkIndex < 0;
    const a = this.#bounds.row(cut.first, temporal ? itemsIndex : chunkIndex);
    const b = this.#bounds.row(cut.second, temporal ? itemsIndex : chunkIndex);
    return temporal ? a.exact[level] === 1 && b.exact[level] === 1 : a.exact[low] === 1 && b.exact[level - low] === 1;
  }

  #key(set: PlanSet, level: number, itemsIndex: number): number {
    return (set.index * this.#model.items.length + itemsIndex) * (this.#model.levels + 1) + level;
  }

  #size(level: number, itemsIndex: number): { devices: number; items: number } {
    return { devices: level * this.#model.step, items: this.#model.items[itemsIndex]! };
  }

  #node(set: PlanSet, level: number, itemsIndex: number): Schedule {
    return { op: "node", node: this.#model.dag.components[set.leaf]!.id, ...this.#size(level, itemsIndex) };
  }

  #schedule(set: PlanSet, level: number, itemsIndex: number): Schedule {
    if (set.leaf >= 0) return this.#node(set, level, itemsIndex);
    return this.#compose(this.#choices.get(this.#key(set, level, itemsIndex))!, set, level, itemsIndex);
  }

  #compose({ cut, chunkIndex, count, low }: Candidate, _set: PlanSet, level: number, itemsIndex: number): Schedule {
    const size = this.#size(level, itemsIndex);
    if (chunkIndex < 0) {
      const first = this.#schedule(cut.first, level, itemsIndex);
      return { op: "temporal", ...size, first, second: this.#schedule(cut.second, level, itemsIndex) };
    }
    const first = this.#schedule(cut.first, low, chunkIndex);
    const second = this.#schedule(cut.second, level - low, chunkIndex);
    if (count === 0) return { op: "parallel", ...size, first, second };
    return { op: "pipeline", ...size, chunk: this.#model.items[chunkIndex]!, first, second };
  }

  /** A schedule that is at most `Row.upper`, found again by redoing the choice that set it. */
  #upperSchedule(set: PlanSet, level: number, itemsIndex: number): Schedule {
    if (set.leaf >= 0) return this.#node(set, level, itemsIndex);
    const { grid, floorIndex } = this.#bounds;
    if (this.#bounds.row(set, itemsIndex).exact[level] === 1) return this.#schedule(set, level, itemsIndex);
    let best = Number.POSITIVE_INFINITY;
    let compose: (() => Schedule) | undefined;
    const size = this.#size(level, itemsIndex);
    const at = (row: Row, on: number): number => row.upper[floorIndex[on]!]!;
    for (const cut of set.cuts) {
      if (this.#operations.temporal) {
        const time =
          at(this.#bounds.row(cut.first, itemsIndex), level) +
          at(this.#bounds.row(cut.second, itemsIndex), level) +
          cut.swap;
        if (time < best) {
          best = time;
          compose = () => ({
            op: "temporal",
            ...size,
            first: this.#upperSchedule(cut.first, level, itemsIndex),
            second: this.#upperSchedule(cut.second, level, itemsIndex),
          });
        }
      }
      if (!this.#operations.spatial) continue;
      const chunkings = this.#model.chunkings[itemsIndex]!;
      const parallel = this.#model.problem.parallelIndependent && cut.independent;
      for (const chunking of parallel ? [...chunkings, { ...chunkings[0]!, count: 0 }] : chunkings) {
        const a = this.#bounds.row(cut.first, chunking.itemsIndex);
        const b = this.#bounds.row(cut.second, chunking.itemsIndex);
        for (const share of grid) {
          if (share >= level) break;
          const time = spatialSeconds(at(a, share), at(b, level - share), chunking.count);
          if (time >= best) continue;
          best = time;
          compose = () => {
            const first = this.#upperSchedule(cut.first, share, chunking.itemsIndex);
            const second = this.#upperSchedule(cut.second, level - share, chunking.itemsIndex);
            if (chunking.count === 0) return { op: "parallel", ...size, first, second };
            return { op: "pipeline", ...size, chunk: chunking.items, first, second };
          };
        }
      }
    }
    return compose!();
  }
}

/** The largest `x` for which a part of `x` seconds beside one of `other` seconds can still stay below `best`. */
function largestUseful(best: number, other: number, count: number): number {
  if (count === 0) return best;
  return best <= (count + 1) * other ? best - count * other : (best - other) / count;
}

function firstLevel(low: number, high: number, holds: (level: number) => boolean): number {
  let [from, to] = [low, high];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (holds(middle)) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** F never grows with devices, so what is proven for a level holds for all below it. */
function raiseLower(row: Row, level: number, value: number): void {
  for (let i = level; i >= 1 && row.lower[i]! < value; i--) row.lower[i] = value;
}

function bitCount(mask: number): number {
  let count = 0;
  for (let rest = mask; rest !== 0; rest &= rest - 1) count++;
  return count;
}

function push(heap: Candidate[], candidate: Candidate): void {
  let i = heap.length;
  heap.push(candidate);
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (heap[parent]!.bound <= candidate.bound) break;
    heap[i] = heap[parent]!;
    i = parent;
  }
  heap[i] = candidate;
}

function pop(heap: Candidate[]): Candidate {
  const top = heap[0]!;
  const last = heap.pop()!;
  if (heap.length > 0) {
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && heap[child + 1]!.bound < heap[child]!.bound) child++;
      if (heap[child]!.bound >= last.bound) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = last;
  }
  return top;
}
