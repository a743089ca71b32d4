import type { Choices } from "./choices.ts";

/**
 * Least summed seconds of every prefix of the tasks at every number of spare units, in one table.
 *
 * Columns count units beyond the prefix's minimums, so a row is as short as what is really open. Two repairs of
 * ARL-Tangram Algorithm 3: a column means "at most", not "exactly", so sparse unit sets stay feasible and units may
 * idle; and reachability needs no recursive `IsValid`, because column 0 (all minimums) is always reachable.
 *
 * Time is the sum over tasks of (columns x choices); `chosen` keeps two bytes a cell.
 */
export class PrefixTable {
  readonly #tasks: readonly Choices[];
  readonly #free: number;
  readonly #minimums: Float64Array;
  readonly #totals: Float64Array;
  readonly #chosen: Uint16Array[] = [];
  /** cells times choices that were compared */
  readonly work: number;

  /** The minimums of all tasks must fit into `free`. `onlyWhole`: no prefix but the whole will be asked for. */
  constructor(tasks: readonly Choices[], free: number, onlyWhole = false) {
    this.#tasks = tasks;
    this.#free = free;
    const n = tasks.length;
    this.#minimums = new Float64Array(n + 1);
    this.#totals = new Float64Array(n + 1);
    for (let i = 0; i < n; i++) this.#minimums[i + 1] = this.#minimums[i]! + tasks[i]!.units[0]!;
    let previous = new Float64Array(1);
    let work = 0;
    let mostUseful = 0;
    for (let i = 0; i < n; i++) {
      const { units, seconds } = tasks[i]!;
      const least = units[0]!;
      mostUseful += units[units.length - 1]! - least;
      const spare = free - this.#minimums[onlyWhole ? n : i + 1]!;
      const columns = Math.min(spare, mostUseful) + 1;
      const current = new Float64Array(columns);
      const choice = new Uint16Array(columns);
      const last = previous.length - 1;
      const first = seconds[0]!;
      for (let j = 0; j < columns; j++) current[j] = previous[Math.min(j, last)]! + first;
      for (let c = 1; c < units.length; c++) {
        const extra = units[c]! - least;
        if (extra >= columns) break;
        const duration = seconds[c]!;
        const bend = Math.min(columns, last + extra + 1);
        for (let j = extra; j < bend; j++) {
          const sum = previous[j - extra]! + duration;
          if (sum < current[j]!) {
            current[j] = sum;
            choice[j] = c;
          }
        }
        const flat = previous[last]! + duration;
        for (let j = bend; j < columns; j++) {
          if (flat < current[j]!) {
            current[j] = flat;
            choice[j] = c;
          }
        }
        work += columns - extra;
      }
      this.#totals[i + 1] = current[columns - 1]!;
      this.#chosen.push(choice);
      previous = current;
    }
    this.work = work;
  }

  /** Least summed seconds of the first `length` tasks. */
  total(length: number): number {
    return this.#totals[length]!;
  }

  /** The choice of each of the first `length` tasks that gives `total(length)`. */
  indices(length: number): Int32Array {
    const index = new Int32Array(length);
    let spare = this.#free - this.#minimums[length]!;
    for (let i = length - 1; i >= 0; i--) {
      const row = this.#chosen[i]!;
      const choice = row[Math.min(spare, row.length - 1)]!;
      index[i] = choice;
      const { units } = this.#tasks[i]!;
      spare = Math.min(spare, row.length - 1) - (units[choice]! - units[0]!);
    }
    return index;
  }
}
