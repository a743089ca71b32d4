import { z } from "zod";

/** What many durations of one name come to. All times are in seconds. */
export const Reduction = z.object({
  count: z.int().nonnegative(),
  total: z.number(),
  mean: z.number(),
  min: z.number(),
  max: z.number(),
  p50: z.number(),
  p95: z.number(),
});
export type Reduction = z.infer<typeof Reduction>;

/** One worker's named durations since its previous report. */
export const TimerReport = z.object({ worker: z.string(), timers: z.record(z.string(), Reduction) });
export type TimerReport = z.infer<typeof TimerReport>;

const empty: Reduction = { count: 0, total: 0, mean: 0, min: 0, max: 0, p50: 0, p95: 0 };

/** The `q`-quantile of ascending values, interpolated between neighbours (the definition that spreadsheets use). */
export function quantile(ascending: ArrayLike<number>, q: number): number {
  if (ascending.length === 0) return 0;
  const at = Math.min(1, Math.max(0, q)) * (ascending.length - 1);
  const low = Math.floor(at);
  const below = ascending[low]!;
  const above = ascending[Math.min(low + 1, ascending.length - 1)]!;
  return below + (above - below) * (at - low);
}

/** Reduces durations; of none, every figure is 0. */
export function reduce(seconds: Iterable<number>): Reduction {
  const ascending = Float64Array.from(seconds).sort();
  if (ascending.length === 0) return empty;
  const total = ascending.reduce((sum, value) => sum + value, 0);
  return {
    count: ascending.length,
    total,
    mean: total / ascending.length,
    min: ascending[0]!,
    max: ascending[ascending.length - 1]!,
    p50: quantile(ascending, 0.5),
    p95: quantile(ascending, 0.95),
  };
}

/** The step times of a run as its summary has them. */
export function stepSeconds(seconds: Iterable<number>): { mean: number; p50: number; p95: number } {
  const { mean, p50, p95 } = reduce(seconds);
  return { mean, p50, p95 };
}

/** A duration under way; `using` stops it with its scope. */
export interface Stopwatch extends Disposable {
  /** Stops and returns the seconds; only the first call is recorded. */
  stop(): number;
}

class Samples {
  count = 0;
  total = 0;
  min = Number.POSITIVE_INFINITY;
  max = Number.NEGATIVE_INFINITY;
  readonly window: number[] = [];

  add(seconds: number, windowSize: number): void {
    this.window[this.count % windowSize] = seconds;
    this.count++;
    this.total += seconds;
    this.min = Math.min(this.min, seconds);
    this.max = Math.max(this.max, seconds);
  }

  reduction(): Reduction {
    const { p50, p95 } = reduce(this.window);
    const { count, total, min, max } = this;
    return { count, total, mean: total / count, min, max, p50, p95 };
  }
}

/**
 * Named durations of one worker. Count, total, mean, min and max are exact; quantiles are those of the last
 * `windowSize` durations of the name, so memory is bounded however long a run is.
 */
export class Timers {
  readonly #worker: string;
  readonly #now: () => number;
  readonly #windowSize: number;
  #samples = new Map<string, Samples>();

  constructor(worker: string, options: { now?: () => number; windowSize?: number } = {}) {
    this.#worker = worker;
    this.#now = options.now ?? (() => performance.now());
    this.#windowSize = options.windowSize ?? 1024;
  }

  record(name: string, seconds: number): void {
    if (!Number.isFinite(seconds)) return;
    let samples = this.#samples.get(name);
    if (samples === undefined) {
      samples = new Samples();
      this.#samples.set(name, samples);
    }
    samples.add(seconds, this.#windowSize);
  }

  start(name: string): Stopwatch {
    const startMs = this.#now();
    let seconds: number | undefined;
    const stop = () => {
      if (seconds === undefined) {
        seconds = (this.#now() - startMs) / 1000;
        this.record(name, seconds);
      }
      return seconds;
    };
    return { stop, [Symbol.dispose]: stop };
  }

  /** Times a call, one that throws included. */
  async time<T>(name: string, run: () => T | Promise<T>): Promise<T> {
    using _ = this.start(name);
    return await run();
  }

  report(): TimerReport {
    const timers: Record<string, Reduction> = {};
    for (const [name, samples] of this.#samples) timers[name] = samples.reduction();
    return { worker: this.#worker, timers };
  }

  /** The report, starting afresh. */
  drain(): TimerReport {
    const report = this.report();
    this.#samples = new Map();
    return report;
  }
}

/**
 * One duration a name from the reports of several ranks, taken from each rank's total. Ranks of a group run side by
 * side, so `max` is what a barrier waits for and `mean` what an average device spends.
 */
export function acrossWorkers(
  reports: readonly TimerReport[],
  figure: "mean" | "max" | "min" | "p50" | "p95",
): Record<string, number> {
  const totals = new Map<string, number[]>();
  for (const { timers } of reports) {
    for (const [name, { total }] of Object.entries(timers)) {
      const list = totals.get(name);
      if (list) list.push(total);
      else totals.set(name, [total]);
    }
  }
  return Object.fromEntries([...totals].map(([name, list]) => [name, reduce(list)[figure]]));
}
