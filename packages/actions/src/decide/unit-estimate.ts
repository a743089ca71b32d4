import type { Elastic } from "./queued-action.ts";

/** Actions that are played one by one; those behind them follow as a fluid. */
const played = 32;

/** Actions behind the candidates whose own durations count; those behind them are like the mean of all before. */
const summed = 1024;

/**
 * What waiting actions of one resource will add, counted in units.
 *
 * All of them get a common limit of units, a power of two, whichever is best. None starts before the first running one ends: who
 * is left now is decided about again then. If they could start at once, it would often seem better to start nobody now. The first
 * `played` start in order as soon as running ones have freed enough units; the start of a later one is the work before it, in unit-seconds,
 * divided by the capacity. Sums of work and of sums of work make that part constant in the length of the queue.
 */
export class UnitEstimate {
  readonly #actions: readonly Elastic[];
  readonly #capacity: number;
  readonly #summed: number;
  readonly #levels: readonly Level[];

  /** `actions` in queue order, the first `candidates` may start now; `capacity` is free and busy units together. */
  constructor(actions: readonly Elastic[], candidates: number, capacity: number) {
    this.#actions = actions;
    this.#capacity = Math.max(1, capacity);
    this.#summed = Math.min(actions.length, candidates + summed);
    let most = 1;
    let least = Number.POSITIVE_INFINITY;
    for (let i = 0; i < this.#summed; i++) {
      const { atPower } = actions[i]!;
      most = Math.max(most, atPower[atPower.length - 2]!);
      least = Math.min(least, atPower[0]!);
    }
    let power = 0;
    while (2 ** (power + 1) <= least) power++;
    const first = power;
    while (2 ** power < most && 2 ** power < this.#capacity) power++;
    this.#levels = levelsOf(actions, this.#summed, first, power);
  }

  /**
   * Summed completion times of the actions from `from` on, in seconds from now.
   * `times`, `units`: what is running and how much it frees; `idle`: units free now.
   */
  sum(from: number, times: Float64Array, units: Float64Array, idle: number, bound: number): number {
    if (from >= this.#actions.length) return 0;
    let running = 0;
    for (let i = 0; i < times.length; i++) running += times[i]! * units[i]!;
    const heap = new CompletionHeap(times, units, played);
    let best = Number.POSITIVE_INFINITY;
    for (const level of this.#levels)
      best = Math.min(best, this.#sumAt(level, from, heap, idle, running, Math.min(bound, best)));
    return best;
  }

  #sumAt(level: Level, from: number, heap: CompletionHeap, idle: number, running: number, bound: number): number {
    heap.reset();
    const end = this.#summed;
    const until = Math.min(end, from + played);
    let available = idle;
    let now = heap.size > 0 ? heap.leastTime() : 0;
    let sum = 0;
    for (let i = from; i < until; i++) {
      const { atPower } = this.#actions[i]!;
      const at = Math.min(2 * level.power, atPower.length - 2);
      const need = Math.min(atPower[at]!, this.#capacity);
      while (available < need && heap.size > 0) {
        now = Math.max(now, heap.leastTime());
        available += heap.leastUnits();
        heap.removeLeast();
      }
      const ends = now + atPower[at + 1]!;
      sum += ends;
      if (sum >= bound) return sum;
      const taken = Math.min(need, available);
      available -= taken;
      heap.add(ends, taken);
    }
    const beyond = this.#actions.length - end;
    const left = end - until;
    if (left + beyond === 0) return sum;
    const { work, workSums, seconds } = level;
    // When an action starts, those that run then have half of theirs still to do.
    const underway = (0.5 * seconds[end]!) / end;
    const offset = Math.max(now, (running + work[until]! - work[from]!) / this.#capacity - underway);
    sum += (left + beyond) * offset + seconds[end]! - seconds[until]!;
    const workBefore = workSums[end]! - workSums[until]! - left * work[until]!;
    // Beyond the summed ones: each is the mean action, and starts after the work of all before it.
    const meanWork = work[end]! / end;
    const workBeyond = beyond * (work[end]! - work[until]!) + (meanWork * beyond * (beyond - 1)) / 2;
    return sum + (workBefore + workBeyond) / this.#capacity + (beyond * seconds[end]!) / end;
  }
}

/** Prefix sums over the queue: `work[i]` and `seconds[i]` of the first i actions, `workSums[i]` of the first i works. */
type Level = {
  /** of two: the common limit of units */
  readonly power: number;
  readonly work: Float64Array;
  readonly workSums: Float64Array;
  readonly seconds: Float64Array;
};

/** Of the first n actions, at all limits from one to the other. */
function levelsOf(actions: readonly Elastic[], n: number, first: number, last: number): Level[] {
  const levels = Array.from({ length: last - first + 1 }, (_, l): Level => {
    const [work, workSums, seconds] = [new Float64Array(n + 1), new Float64Array(n + 1), new Float64Array(n + 1)];
    return { power: first + l, work, workSums, seconds };
  });
  for (let i = 0; i < n; i++) {
    const { atPower } = actions[i]!;
    for (let l = 0; l < levels.length; l++) {
      const { power, work, workSums, seconds } = levels[l]!;
      const at = Math.min(2 * power, atPower.length - 2);
      workSums[i + 1] = workSums[i]! + work[i]!;
      work[i + 1] = work[i]! + atPower[at]! * atPower[at + 1]!;
      seconds[i + 1] = seconds[i]! + atPower[at + 1]!;
    }
  }
  return levels;
}

/** A min-heap of completions that can be set back to how it began. */
class CompletionHeap {
  readonly #startTimes: Float64Array;
  readonly #startUnits: Float64Array;
  readonly #times: Float64Array;
  readonly #units: Float64Array;
  size = 0;

  constructor(times: Float64Array, units: Float64Array, room: number) {
    this.#times = new Float64Array(times.length + room);
    this.#units = new Float64Array(times.length + room);
    this.#times.set(times);
    this.#units.set(units);
    this.size = times.length;
    for (let i = (this.size >> 1) - 1; i >= 0; i--) this.#sink(i, this.#times[i]!, this.#units[i]!);
    this.#startTimes = this.#times.slice(0, times.length);
    this.#startUnits = this.#units.slice(0, times.length);
  }

  reset(): void {
    this.size = this.#startTimes.length;
    this.#times.set(this.#startTimes);
    this.#units.set(this.#startUnits);
  }

  leastTime(): number {
    return this.#times[0]!;
  }

  leastUnits(): number {
    return this.#units[0]!;
  }

  removeLeast(): void {
    this.size--;
    this.#sink(0, this.#times[this.size]!, this.#units[this.size]!);
  }

  add(time: number, units: number): void {
    let i = this.size++;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (this.#times[parent]! <= time) break;
      this.#times[i] = this.#times[parent]!;
      this.#units[i] = this.#units[parent]!;
      i = parent;
    }
    this.#times[i] = time;
    this.#units[i] = units;
  }

  #sink(from: number, time: number, units: number): void {
    const times = this.#times;
    let i = from;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= this.size) break;
      if (child + 1 < this.size && times[child + 1]! < times[child]!) child++;
      if (times[child]! >= time) break;
      times[i] = times[child]!;
      this.#units[i] = this.#units[child]!;
      i = child;
    }
    times[i] = time;
    this.#units[i] = units;
  }
}
