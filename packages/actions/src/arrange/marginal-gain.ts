import { type Choices, convexHull } from "./choices.ts";

/** A heap of tasks by what the next step of each gains per unit; ties go to the earlier task. */
class GainHeap {
  readonly #task: Int32Array;
  readonly #density: Float64Array;
  size = 0;

  constructor(capacity: number) {
    this.#task = new Int32Array(capacity);
    this.#density = new Float64Array(capacity);
  }

  /** Adds without ordering; `heapify` follows. */
  append(task: number, density: number): void {
    this.#task[this.size] = task;
    this.#density[this.size++] = density;
  }

  heapify(): void {
    for (let i = (this.size >> 1) - 1; i >= 0; i--) this.#sink(i);
  }

  top(): number {
    return this.#task[0]!;
  }

  topDensity(): number {
    return this.#density[0]!;
  }

  /** Gives the top task another density. */
  replaceTop(density: number): void {
    this.#density[0] = density;
    this.#sink(0);
  }

  removeTop(): void {
    this.size--;
    this.#task[0] = this.#task[this.size]!;
    this.#density[0] = this.#density[this.size]!;
    if (this.size > 1) this.#sink(0);
  }

  #sink(from: number): void {
    const tasks = this.#task;
    const densities = this.#density;
    const task = tasks[from]!;
    const density = densities[from]!;
    let i = from;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= this.size) break;
      const right = child + 1;
      if (right < this.size && before(tasks[right]!, densities[right]!, tasks[child]!, densities[child]!))
        child = right;
      if (!before(tasks[child]!, densities[child]!, task, density)) break;
      tasks[i] = tasks[child]!;
      densities[i] = densities[child]!;
      i = child;
    }
    tasks[i] = task;
    densities[i] = density;
  }
}

function before(task: number, density: number, otherTask: number, otherDensity: number): boolean {
  return density > otherDensity || (density === otherDensity && task < otherTask);
}

/**
 * Marginal gain over prefixes of tasks whose choices step by one unit and are convex (`isUnitConvex`).
 *
 * The optimum of a prefix is the set of the largest gains that its spare units can hold. Evicting the last task only
 * adds spare units, so the optimum of the shorter prefix keeps every step of the longer one: `evictLast` continues
 * where the last prefix stopped, and all evictions together cost one run over the units.
 */
export class UnitConvexArrangement {
  readonly #tasks: readonly Choices[];
  readonly #index: Int32Array;
  readonly #heap: GainHeap;
  #length: number;
  #spare: number;
  #total = 0;

  /** The minimums of all tasks must fit into `free`. */
  constructor(tasks: readonly Choices[], free: number) {
    this.#tasks = tasks;
    this.#length = tasks.length;
    this.#index = new Int32Array(tasks.length);
    this.#heap = new GainHeap(tasks.length);
    this.#spare = free;
    for (let i = 0; i < tasks.length; i++) {
      const { units, seconds } = tasks[i]!;
      this.#spare -= units[0]!;
      this.#total += seconds[0]!;
      if (units.length > 1) this.#heap.append(i, seconds[0]! - seconds[1]!);
    }
    this.#heap.heapify();
    this.#spread();
  }

  get length(): number {
    return this.#length;
  }

  /** Summed seconds of the current prefix. */
  get total(): number {
    return this.#total;
  }

  /** The choice of each task of the current prefix. */
  indices(): Int32Array {
    return this.#index.slice(0, this.#length);
  }

  choiceOf(task: number): number {
    return this.#index[task]!;
  }

  unitsOf(task: number): number {
    return this.#tasks[task]!.units[this.#index[task]!]!;
  }

  secondsOf(task: number): number {
    return this.#tasks[task]!.seconds[this.#index[task]!]!;
  }

  evictLast(): void {
    const last = --this.#length;
    this.#spare += this.unitsOf(last);
    this.#total -= this.secondsOf(last);
    this.#spread();
  }

  #spread(): void {
    const heap = this.#heap;
    while (this.#spare > 0 && heap.size > 0) {
      const task = heap.top();
      if (task >= this.#length) {
        heap.removeTop();
        continue;
      }
      const gain = heap.topDensity();
      if (gain <= 0) return;
      const at = ++this.#index[task]!;
      this.#spare--;
      this.#total -= gain;
      const { seconds } = this.#tasks[task]!;
      if (at + 1 < seconds.length) heap.replaceTop(seconds[at]! - seconds[at + 1]!);
      else heap.removeTop();
    }
  }
}

export type HullArrangement = {
  /** chosen index of each task */
  readonly index: Int32Array;
  /** nothing that fits sums to less than this */
  readonly lowerBound: number;
  /** gain per unit at which the relaxation stopped; 0 when nothing was refused */
  readonly price: number;
  /** steps taken */
  readonly steps: number;
};

/**
 * Marginal gain per unit over the convex hull of every task's choices. The first step that does not fit fixes the
 * value of the linear relaxation, a lower bound; later, smaller steps are still taken. When no step was refused the
 * result is optimal. The minimums must fit.
 */
export function arrangeOnHulls(tasks: readonly Choices[], free: number): HullArrangement {
  const hulls = tasks.map(convexHull);
  const at = new Int32Array(tasks.length);
  const heap = new GainHeap(tasks.length);
  let spare = free;
  let total = 0;
  const density = (task: number): number => {
    const { units, seconds } = tasks[task]!;
    const hull = hulls[task]!;
    const from = hull[at[task]!]!;
    const to = hull[at[task]! + 1]!;
    return (seconds[from]! - seconds[to]!) / (units[to]! - units[from]!);
  };
  for (let i = 0; i < tasks.length; i++) {
    spare -= tasks[i]!.units[0]!;
    total += tasks[i]!.seconds[0]!;
    if (hulls[i]!.length > 1) heap.append(i, density(i));
  }
  heap.heapify();
  let lowerBound = Number.NaN;
  let price = 0;
  let steps = 0;
  while (heap.size > 0 && (spare > 0 || Number.isNaN(lowerBound))) {
    const task = heap.top();
    const { units, seconds } = tasks[task]!;
    const hull = hulls[task]!;
    const from = hull[at[task]!]!;
    const to = hull[at[task]! + 1]!;
    const size = units[to]! - units[from]!;
    if (size > spare) {
      if (Number.isNaN(lowerBound)) {
        price = heap.topDensity();
        lowerBound = total - price * spare;
      }
      heap.removeTop();
      continue;
    }
    spare -= size;
    total -= seconds[from]! - seconds[to]!;
    at[task]!++;
    steps++;
    if (at[task]! + 1 < hull.length) heap.replaceTop(density(task));
    else heap.removeTop();
  }
  if (Number.isNaN(lowerBound)) lowerBound = total;
  for (let i = 0; i < at.length; i++) at[i] = hulls[i]![at[i]!]!;
  return { index: at, lowerBound, price, steps };
}

/**
 * Marginal gain per unit where a unit costs `price` for every second it is held: minimises the sum of
 * seconds * (1 + price * units), taking steps along `hulls` while they lower it. A heuristic where that sum is not
 * convex. The minimums must fit; units may stay idle. Returns the chosen index of each task.
 */
export function arrangePriced(
  tasks: readonly { readonly choices: Choices; readonly hull: readonly number[] }[],
  free: number,
  price: number,
): Int32Array {
  const at = new Int32Array(tasks.length);
  const heap = new GainHeap(tasks.length);
  let spare = free;
  const density = (task: number): number => {
    const { choices, hull } = tasks[task]!;
    const { units, seconds } = choices;
    const from = hull[at[task]!]!;
    const to = hull[at[task]! + 1]!;
    const fromUnits = units[from]!;
    const toUnits = units[to]!;
    return (seconds[from]! * (1 + price * fromUnits) - seconds[to]! * (1 + price * toUnits)) / (toUnits - fromUnits);
  };
  for (let i = 0; i < tasks.length; i++) {
    spare -= tasks[i]!.choices.units[0]!;
    if (tasks[i]!.hull.length > 1) heap.append(i, density(i));
  }
  heap.heapify();
  while (spare > 0 && heap.size > 0 && heap.topDensity() > 0) {
    const task = heap.top();
    const { choices, hull } = tasks[task]!;
    const size = choices.units[hull[at[task]! + 1]!]! - choices.units[hull[at[task]!]!]!;
    if (size > spare) {
      heap.removeTop();
      continue;
    }
    spare -= size;
    at[task]!++;
    if (at[task]! + 1 < hull.length) heap.replaceTop(density(task));
    else heap.removeTop();
  }
  for (let i = 0; i < at.length; i++) at[i] = tasks[i]!.hull[at[i]!]!;
  return at;
}
