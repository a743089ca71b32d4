import { type Problem, readProblem, type SolveOptions, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import { Interference, interferenceFactor, neverDecreases } from "./interference.ts";
import { Lengths, sortedDescending } from "./lengths.ts";
import { asLongest, between, type GroupTokens, LongestRun } from "./longest-run.ts";

const secondsPerToken = z.number().positive();

/** Heddle §5.2: which worker gets how many of the trajectories, longest first. */
export const PlaceProblem = z.strictObject({
  lengths: Lengths,
  /** a count of equal workers, or the seconds per token of each, in the order in which they receive groups */
  workers: z.union([z.int().positive(), z.array(secondsPerToken).min(1)]),
  /** seconds per token of equal workers */
  tokenTime: secondsPerToken.default(1),
  F: Interference,
});
export type PlaceProblem = z.infer<typeof PlaceProblem>;

export type PlaceStats = {
  readonly milliseconds: number;
  readonly method: string;
  /** bounds on the makespan that were tried; 1 for the dynamic program */
  readonly probes: number;
  /** times a group's duration was computed */
  readonly evaluations: number;
};

export type PlaceAnswer = {
  readonly feasible: boolean;
  /** seconds until the slowest worker is done; null when F's `max` leaves no room */
  readonly makespan: number | null;
  /** sizes[j] trajectories go to worker j; null when infeasible */
  readonly sizes: readonly number[] | null;
  readonly stats: PlaceStats;
};

/** The first is the default. */
export const placeMethods = ["exact", "dp"] as const;

export type Placed = {
  readonly makespan: number;
  readonly sizes: readonly number[];
  readonly probes: number;
  readonly evaluations: number;
};

/** Throws `problem.invalid`. `exact` and `dp` return the same makespan. */
export function solvePlace(input: unknown, options: SolveOptions = {}): PlaceAnswer {
  const { method = placeMethods[0], nowMs } = options;
  if (method !== "exact" && method !== "dp") throw unknownMethod(method, placeMethods);
  const { lengths, workers, tokenTime, F } = readProblem(PlaceProblem, input);
  const sorted = sortedDescending(lengths);
  const tokenTimes = typeof workers === "number" ? new Array<number>(workers).fill(tokenTime) : workers;
  const factor = interferenceFactor(F);
  // The greedy scan needs F to be monotone; a table that is not goes to the dynamic program, which needs nothing.
  const used = method === "exact" && neverDecreases(F) ? "exact" : "dp";
  const startedMs = nowMs?.() ?? 0;
  const tokensOf = asLongest(sorted, factor);
  const placed = (used === "exact" ? placeExact : placeByDynamicProgram)(sorted, tokenTimes, tokensOf);
  const stats = {
    milliseconds: (nowMs?.() ?? 0) - startedMs,
    method: used,
    probes: placed?.probes ?? 0,
    evaluations: placed?.evaluations ?? 0,
  };
  if (placed === undefined) return { feasible: false, makespan: null, sizes: null, stats };
  return { feasible: true, makespan: placed.makespan, sizes: placed.sizes, stats };
}

/**
 * The least makespan by bisection over doubles.
 *
 * For a bound B, each worker in turn takes the longest run whose duration is at most B; since F and the sorted lengths
 * are monotone, a longer run never hurts the workers after it, so B is feasible exactly when all trajectories are taken.
 * A feasible B is replaced by the makespan it gave, an infeasible one by the least duration above it that was refused
 * (below that nothing changes), so both ends are durations that occur and the result is exact to the last bit.
 *
 * `sorted` is descending. Undefined when no bound is feasible. A group must never take less for one more, nor for a longer one.
 */
export function placeExact(
  sorted: Float64Array,
  tokenTimes: readonly number[],
  tokensOf: GroupTokens,
): Placed | undefined {
  const numWorkers = tokenTimes.length;
  const sizes = new Int32Array(numWorkers);
  const best = new Int32Array(numWorkers);
  const run = new LongestRun(tokensOf);
  let probes = 0;
  let reached = 0;

  /** Whether everything is taken within `bound`; sets sizes, the makespan `reached`, and the run's least refused. */
  const probe = (bound: number): boolean => {
    probes++;
    run.begin();
    reached = 0;
    let at = 0;
    for (let j = 0; j < numWorkers; j++) {
      const left = sorted.length - at;
      if (left === 0) {
        sizes.fill(0, j);
        return true;
      }
      const size = run.find(at, tokenTimes[j]!, bound, left, sizes[j]!);
      sizes[j] = size;
      if (run.seconds > reached) reached = run.seconds;
      at += size;
    }
    return at === sorted.length;
  };

  if (!probe(Number.MAX_VALUE)) return undefined;
  best.set(sizes);
  let feasible = reached;
  // Nothing is below the first trajectory alone on the fastest worker.
  let floor = sorted.length === 0 ? 0 : tokensOf(0, 1) * Math.min(...tokenTimes);
  while (floor < feasible) {
    const middle = between(floor, feasible);
    if (probe(middle < feasible ? middle : floor)) {
      feasible = reached;
      best.set(sizes);
    } else {
      floor = Math.max(run.refused, floor);
    }
  }
  return { makespan: feasible, sizes: Array.from(best), probes, evaluations: run.evaluations };
}

/** Heddle Formula 3, O(n² m). One deviation, a repair: a worker may stay empty (the formula demands one each). */
export function placeByDynamicProgram(
  sorted: Float64Array,
  tokenTimes: readonly number[],
  tokensOf: GroupTokens,
): Placed | undefined {
  const n = sorted.length;
  let previous = new Float64Array(n + 1).fill(Number.POSITIVE_INFINITY);
  previous[0] = 0;
  const cutAt: Int32Array[] = [];
  let evaluations = 0;
  for (const tokenTime of tokenTimes) {
    // current[i]: least makespan of the first i trajectories on the workers so far
    const current = Float64Array.from(previous);
    const cut = Int32Array.from({ length: n + 1 }, (_, i) => i);
    for (let i = 1; i <= n; i++) {
      for (let k = 0; k < i; k++) {
        const group = tokensOf(k, i - k) * tokenTime;
        const seconds = Math.max(previous[k]!, group);
        if (seconds < current[i]!) {
          current[i] = seconds;
          cut[i] = k;
        }
      }
      evaluations += i;
    }
    cutAt.push(cut);
    previous = current;
  }
  if (previous[n] === Number.POSITIVE_INFINITY) return undefined;
  const sizes = new Array<number>(tokenTimes.length).fill(0);
  for (let j = tokenTimes.length - 1, i = n; j >= 0; j--) {
    sizes[j] = i - cutAt[j]![i]!;
    i = cutAt[j]![i]!;
  }
  return { makespan: previous[n]!, sizes, probes: 1, evaluations };
}

/** `treadle solve place`. */
export const placeProblem: Problem = { schema: PlaceProblem, methods: placeMethods, solve: solvePlace };
