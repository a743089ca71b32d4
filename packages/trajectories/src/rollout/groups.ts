import { descendingOrder } from "../lengths.ts";
import { asLongest, type GroupTokens } from "../longest-run.ts";
import { inverseNormal } from "../normal.ts";
import { placeByDynamicProgram, placeExact } from "../place.ts";
import { busyTokens } from "./busy-rank.ts";
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
    return turns * Math.exp(s * expectedMaximum(k));
  };
}

/** Of trajectories from the longest to the shortest: what a worker is busy for with a group of them. */
export type Estimate = (sorted: Float64Array) => GroupTokens;

/** What `solve rollout` is defined by: all of a group are as long as its longest, those that wait for a place included. */
export const paperEstimate =
  (factor: Factor, maxBatch: number, s: number, company?: number): Estimate =>
  (sorted) =>
    asLongest(sorted, queueAwareFactor(factor, maxBatch, s, company));

/**
 * What a worker of so many places is busy for where the longest go first (`busyTokens`).
 * Predictions err: the longest of k is expected to be longer, as `queueAwareFactor` has it, and no longer than `most`. So are the others
 * taken to be, which is more than their sum errs by: without that, the many that are predicted to be short fill few workers, and those
 * of them that are long wait there.
 */
export function scheduledEstimate(
  factor: Factor,
  places: number,
  s: number,
  most: number = Number.POSITIVE_INFINITY,
): Estimate {
  const busy = busyTokens(factor, places);
  const upwards: number[] = [];
  const upwardsOf = (k: number): number => {
    if (s === 0) return 1;
    upwards[k] ??= Math.exp(s * expectedMaximum(k));
    return upwards[k];
  };
  return (sorted) => {
    const sums = new Float64Array(sorted.length + 1);
    for (let i = 0; i < sorted.length; i++) sums[i + 1] = sums[i]! + sorted[i]!;
    return (start, size) => {
      const upward = upwardsOf(size);
      const longest = Math.min(sorted[start]! * upward, Math.max(sorted[start]!, most));
      return busy({ longest, sum: longest + upward * (sums[start + size]! - sums[start + 1]!), size });
    };
  };
}

/** Of k normals, by Blom's formula. */
const expectedMaximum = (k: number): number => (k === 1 ? 0 : inverseNormal((k - 0.375) / (k + 0.25)));

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
  readonly estimate: Estimate;
  readonly isMonotone: boolean;
}): Groups {
  const { predictions, tokenTimes, estimate, isMonotone } = input;
  const workers = fastestFirst(tokenTimes);
  const order = descendingOrder(predictions);
  const sorted = Float64Array.from(order, (i) => predictions[i]!);
  const seconds = workers.map((j) => tokenTimes[j]!);
  const tokensOf = estimate(sorted);
  const sizes = isMonotone ? placeExact(sorted, seconds, tokensOf)?.sizes : largestFirst(sorted, seconds, tokensOf);
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
function largestFirst(sorted: Float64Array, seconds: readonly number[], tokensOf: GroupTokens): number[] | undefined {
  const bound = placeByDynamicProgram(sorted, seconds, tokensOf)?.makespan;
  if (bound === undefined) return undefined;
  const n = sorted.length;
  const fits = (j: number, from: number, size: number): boolean =>
    size === 0 || tokensOf(from, size) * seconds[j]! <= bound;
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
