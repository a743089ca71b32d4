/**
 * Which states schedules within a limit have: of the inside and outside of a state, the outside (as in chart parsing from
 * coarse to fine, Charniak et al. 2006). The bounds of a coarse grid say what a subgraph takes at least; from the whole
 * down, what its parts may take at most so that the whole stays within the limit. What takes more is in no such schedule,
 * and finer bounds need not be made of it.
 *
 * IO1 every state of every schedule within the limit is allowed: its seconds are at most `most`, and its level in the range.
 */
import type { Bounds, GridRow } from "./bounds.ts";
import { limitSlack } from "./bounds.ts";
import { largestUseful, totalSeconds } from "./candidate.ts";
import { bitCount } from "./graph.ts";
import { type Cut, type Operations, type PlanModel, type PlanSet, swapAt } from "./model.ts";

/** What a subgraph may take, in chunks of a size, and on which levels. */
export type Allowed = {
  readonly most: number;
  readonly from: number;
  readonly to: number;
  /** on any of these levels */
  mostOn(low: number, high: number): number;
};

export class Outside {
  readonly #model: PlanModel;
  readonly #operations: Operations;
  readonly #bounds: Bounds;
  /** by the index of the subgraph, then by items index: the most seconds by grid index; absent where no schedule comes by */
  readonly #most: (Float64Array | undefined)[][] = [];
  readonly #allowed: (Allowed | undefined)[][] = [];
  /** by the number of its components */
  readonly #sets: PlanSet[][] = [];
  evaluations = 0;

  /** `limit` is finite: without one there is nothing to leave out. */
  constructor(model: PlanModel, operations: Operations, bounds: Bounds, limit: number, checkDeadline: () => void) {
    this.#model = model;
    this.#operations = operations;
    this.#bounds = bounds;
    const { all } = model;
    const top = bounds.grid.levels.length - 1;
    this.#rowOf(all, 0)[top] = limit * (1 + limitSlack);
    // A part has fewer components than what it is a part of.
    for (let size = this.#sets.length - 1; size > 1; size--)
      for (const set of this.#sets[size] ?? []) {
        checkDeadline();
        for (let i = 0; i < model.items.length; i++) this.#look(set, i);
      }
  }

  /** Rows of more than two stages have parts that are no subgraphs. */
  static isFor(model: PlanModel, operations: Operations): boolean {
    return operations.spatial && !model.kway;
  }

  of(set: PlanSet, itemsIndex: number): Allowed | undefined {
    return this.#allowed[set.index]?.[itemsIndex];
  }

  #rowOf(set: PlanSet, itemsIndex: number): Float64Array {
    let rows = this.#most[set.index];
    if (rows === undefined) {
      this.#most[set.index] = rows = [];
      const size = bitCount(set.mask);
      for (let known = this.#sets.length; known <= size; known++) this.#sets.push([]);
      this.#sets[size]!.push(set);
    }
    rows[itemsIndex] ??= new Float64Array(this.#bounds.grid.levels.length).fill(Number.NEGATIVE_INFINITY);
    return rows[itemsIndex];
  }

  #look(set: PlanSet, itemsIndex: number): void {
    const most = this.#most[set.index]![itemsIndex];
    if (most === undefined) return;
    const { lower } = this.#bounds.gridRow(set, itemsIndex);
    let [first, last, largest] = [-1, -1, Number.NEGATIVE_INFINITY];
    for (let g = 0; g < most.length; g++) {
      if (lower[g]! > most[g]!) most[g] = Number.NEGATIVE_INFINITY;
      if (most[g] === Number.NEGATIVE_INFINITY) continue;
      if (first < 0) first = g;
      last = g;
      largest = Math.max(largest, most[g]!);
    }
    if (first < 0) return;
    const { levels } = this.#bounds.grid;
    const { ceilIndex } = this.#bounds.grid;
    const mostOn = (low: number, high: number): number => {
      let found = Number.NEGATIVE_INFINITY;
      for (let g = ceilIndex[low]!; g <= ceilIndex[high]!; g++) found = Math.max(found, most[g]!);
      return found;
    };
    const allowed = { most: largest, from: first === 0 ? 1 : levels[first - 1]! + 1, to: levels[last]!, mostOn };
    this.#allowed[set.index] ??= [];
    this.#allowed[set.index]![itemsIndex] = allowed;
    const { chunkings, problem } = this.#model;
    for (const cut of set.cuts) {
      if (this.#operations.temporal && cut.turns) this.#turns(cut, itemsIndex, most);
      if (!this.#operations.spatial || !cut.beside) continue;
      for (const chunking of chunkings[itemsIndex]!)
        this.#beside(cut, chunking.itemsIndex, chunking.count, most, first, last);
      if (problem.parallelIndependent && cut.independent) this.#beside(cut, itemsIndex, 0, most, first, last);
    }
  }

  /** Each part has all devices. Swaps take no longer on more of them, so those of the most in a cell bound the others'. */
  #turns(cut: Cut, itemsIndex: number, most: Float64Array): void {
    const { turnFirst, turnSecond } = cut;
    const { levels } = this.#bounds.grid;
    const [a, b] = [this.#bounds.gridRow(turnFirst, itemsIndex), this.#bounds.gridRow(turnSecond, itemsIndex)];
    const [ofFirst, ofSecond] = [this.#rowOf(turnFirst, itemsIndex), this.#rowOf(turnSecond, itemsIndex)];
    for (let g = 0; g < most.length; g++) {
      const left = most[g]! - swapAt(cut, levels[g]!);
      const [first, second] = [lowerOf(a, levels, g), lowerOf(b, levels, g)];
      if (first + second > left) continue;
      ofFirst[g] = Math.max(ofFirst[g]!, left - second);
      ofSecond[g] = Math.max(ofSecond[g]!, left - first);
    }
  }

  /** Splits are looked at by classes (`Grid.classes`); from the crossing outwards, as in `bounds.ts`. */
  #beside(cut: Cut, chunkIndex: number, count: number, most: Float64Array, first: number, last: number): void {
    const { grid } = this.#bounds;
    const { objective } = this.#model;
    const [a, b] = [this.#bounds.gridRow(cut.first, chunkIndex), this.#bounds.gridRow(cut.second, chunkIndex)];
    let [ofFirst, ofSecond] = [undefined as Float64Array | undefined, undefined as Float64Array | undefined];
    for (let g = first; g <= last; g++) {
      const cap = most[g]!;
      if (cap === Number.NEGATIVE_INFINITY) continue;
      const { firstLevel, firstIndex, secondLevel, secondIndex } = grid.classes(g, cut.free);
      const numSplits = firstIndex.length;
      if (numSplits === 0) continue;
      const firstAt = a.byLevel ? firstLevel : firstIndex;
      const secondAt = b.byLevel ? secondLevel : secondIndex;
      const least = (x: number, y: number): number => totalSeconds(objective, x + y, Math.max(x, y), count, 0);
      const firstLeast = a.lower[firstAt[numSplits - 1]!]!;
      const secondLeast = b.lower[secondAt[0]!]!;
      if (least(firstLeast, secondLeast) > cap) continue;
      ofFirst ??= this.#rowOf(cut.first, chunkIndex);
      ofSecond ??= this.#rowOf(cut.second, chunkIndex);
      // Levels that the cell has at least: a second part may have fewer than the class's most.
      const fewest = g === 0 ? 1 : grid.levels[g - 1]! + 1;
      let [from, to] = [0, numSplits];
      while (from < to) {
        const middle = (from + to) >> 1;
        if (a.lower[firstAt[middle]!]! <= b.lower[secondAt[middle]!]!) to = middle;
        else from = middle + 1;
      }
      for (const [start, stride] of [
        [from, 1],
        [from - 1, -1],
      ] as const)
        for (let i = start; i >= 0 && i < numSplits; i += stride) {
          const [x, y] = [a.lower[firstAt[i]!]!, b.lower[secondAt[i]!]!];
          this.evaluations++;
          // What dominates on this side only gets slower.
          if ((stride > 0 ? least(firstLeast, y) : least(x, secondLeast)) > cap) break;
          if (least(x, y) > cap) continue;
          const low = cut.free ? secondIndex[i]! : grid.ceilIndex[Math.max(1, fewest - firstLevel[i]!)]!;
          this.#allow(ofFirst, firstIndex[i]!, ofSecond, low, secondIndex[i]!, x, y, cap, count, b);
        }
    }
  }

  /** A class of splits that stay within `cap`: its first part, and of the second all cells that it may lie in. */
  #allow(
    ofFirst: Float64Array,
    firstIndex: number,
    ofSecond: Float64Array,
    low: number,
    high: number,
    first: number,
    second: number,
    cap: number,
    count: number,
    b: GridRow,
  ): void {
    const { objective } = this.#model;
    ofFirst[firstIndex] = Math.max(ofFirst[firstIndex]!, largestUseful(objective, cap, second, second, count, 0));
    const useful = largestUseful(objective, cap, first, first, count, 0);
    for (let cell = high; cell >= low; cell--) {
      if (lowerOf(b, this.#bounds.grid.levels, cell) > useful) break;
      ofSecond[cell] = Math.max(ofSecond[cell]!, useful);
    }
  }
}

const lowerOf = ({ lower, byLevel }: GridRow, levels: Int32Array, g: number): number =>
  lower[byLevel ? levels[g]! : g]!;
