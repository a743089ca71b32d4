import { descendingOrder } from "../lengths.ts";
import { groupSeconds } from "../longest-run.ts";
import { inverseNormal } from "../normal.ts";
import { placeByDynamicProgram, placeExact } from "../place.ts";
import { noFinitePlacement } from "./outcome.ts";

type Factor = (k: number) => number;

/**
 * F′ of a group of k, of which `maxBatch` run at once: above it, requests take turns, so each is slower in proportion.
 * Predictions err, and the longest of k errs upwards: with errors of log-sd σ the expected maximum of k normals, E (by
 * Blom's formula), lengthens it by exp(sE); s of about σ/2 was best in simulations, and 0 is the factor as it is.
 * `company`: the share of a group that runs beside its longest on average, as the others end before it does.
 */
export function queueAwareFactor(factor: Factor, maxBatch: number, s: number, company = 1): Factor {
  const slowest = factor(maxBatch);
  return (k) => {
    const beside = Math.max(1, Math.ceil(k * company));
    const turns = beside <= maxBatch ? factor(beside) : (slowest * beside) / maxBatch;
    if (s === 0) return turns;
    const expected = k === 1 ? 0 : inverseNormal((k - 0.375) / (k + 0.25));
    return turns * Math.exp(s * expected);
  };
}

export type Groups = {
  /** workers by ascending seconds per token; group g is that of `workers[g]` */
  readonly workers: readonly number[];
  readonly sizes: readonly number[];
  /** the worker of each trajectory */
  readonly workerOf: Int32Array;
};

/** The fastest first, of equals the first. */
export const fastestFirst = (tokenTimes: readonly number[]): number[] =>
  tokenTimes.map((_, j) => j).sort((a, b) => tokenTimes[a]! - tokenTimes[b]! || a - b);

/** `place` on predictions: the longest trajectories go to the fastest worker. Throws when no makespan is finite. */
export function formGroups(input: {
  readonly predictions: readonly number[];
  readonly tokenTimes: readonly number[];
  readonly factor: Factor;
  readonly isMonotone: boolean;
}): Groups {
  const { predictions, tokenTimes, factor, isMonotone } = input;
  const workers = fastestFirst(tokenTimes);
  const order = descendingOrder(predictions);
  const sorted = Float64Array.from(order, (i) => predictions[i]!);
  const seconds = workers.map((j) => tokenTimes[j]!);
  const sizes = isMonotone ? placeExact(sorted, seconds, factor)?.sizes : largestFirst(sorted, seconds, factor);
  if (sizes === undefined) throw noFinitePlacement();
  const workerOf = new Int32Array(predictions.length);
  let at = 0;
  for (const [g, size] of sizes.entries()) {
    for (const end = at + size; at < end; at++) workerOf[order[at]!] = workers[g]!;
  }
  return { workers, sizes, workerOf };
}

/**
 * Where F falls somewhere, a longer run may hurt those after it: each worker takes the most that leaves the others
 * within the least makespan. Where F never falls, that is what `placeExact` answers.
 */
function largestFirst(sorted: Float64Array, seconds: readonly number[], factor: Factor): number[] | undefined {
  const bound = placeByDynamicProgram(sorted, seconds, factor)?.makespan;
  if (bound === undefined) return undefined;
  const n = sorted.length;
  const fits = (j: number, from: number, size: number): boolean =>
    size === 0 || groupSeconds(factor(size), sorted[from]!, seconds[j]!) <= bound;
  // isLeft[j][i]: workers from j on finish all from the i-th trajectory on
  const isLeft = Array.from({ length: seconds.length + 1 }, () => new Uint8Array(n + 1));
  const sizeAt = (j: number, from: number): number => {
    for (let size = n - from; size >= 0; size--) if (isLeft[j + 1]![from + size] && fits(j, from, size)) return size;
    return -1;
  };
  isLeft[seconds.length]![n] = 1;
  for (let j = seconds.length - 1; j >= 0; j--) {
    for (let from = 0; from <= n; from++) isLeft[j]![from] = sizeAt(j, from) < 0 ? 0 : 1;
  }
  const sizes: number[] = [];
  for (let j = 0, from = 0; j < seconds.length; j++) {
    sizes.push(sizeAt(j, from));
    from += sizes[j]!;
  }
  return sizes;
}
