import { type Problem, readProblem, type SolveOptions, TreadleError, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import type { Allocated, Allocation } from "./allocation.ts";
import { anneal } from "./anneal.ts";
import { Interference, interferenceFactor, neverDecreases } from "./interference.ts";
import { Lengths, sortedDescending } from "./lengths.ts";
import { asLongest, between, LongestRun } from "./longest-run.ts";
import { paperEstimate, scheduledEstimate } from "./rollout/groups.ts";

const degree = z
  .string()
  .regex(/^[1-9]\d*$/, "expected a degree of model parallelism: a whole number of GPUs of at least 1");

/** Heddle §6: how many workers of which degree of model parallelism share a budget of GPUs, and who gets what. */
export const AllocateProblem = z.strictObject({
  gpus: z.int().positive().max(65536),
  /** seconds per token by degree of model parallelism */
  tokenTime: z
    .record(degree, z.number().positive())
    .refine((times) => Object.keys(times).length > 0, "expected at least one degree"),
  F: Interference,
  lengths: Lengths,
  /** `sorted`: the longest trajectories go to the highest degrees, as in the paper; `any`: degrees in any order */
  order: z.enum(["sorted", "any"]).default("sorted"),
});
export type AllocateProblem = z.infer<typeof AllocateProblem>;

export type AllocateAnswer = {
  readonly feasible: boolean;
  readonly makespan: number | null;
  /** degree of each worker, in the order in which they receive groups; their sum is at most `gpus` */
  readonly degrees: readonly number[] | null;
  readonly sizes: readonly number[] | null;
  readonly stats: {
    readonly milliseconds: number;
    readonly method: string;
    /** bounds tried (exact), moves tried (anneal), or 1 (dp) */
    readonly probes: number;
    readonly evaluations: number;
  };
};

/** The first is the default. */
export const allocateMethods = ["exact", "anneal", "dp"] as const;

/** Throws `problem.invalid`. `exact` and `dp` return the same makespan; `anneal` is Heddle Alg. 2 and may be above. */
export function solveAllocate(input: unknown, options: SolveOptions = {}): AllocateAnswer {
  const { method = allocateMethods[0], nowMs, seed = 0, flags } = options;
  if (method !== "exact" && method !== "anneal" && method !== "dp") throw unknownMethod(method, allocateMethods);
  const flagged = flags?.order !== undefined && isObject(input) ? { ...input, order: flags.order } : input;
  const { gpus, tokenTime, F, lengths, order } = readProblem(AllocateProblem, flagged);
  const monotone = neverDecreases(F);
  if (method === "anneal" && !monotone) {
    throw new TreadleError(
      "problem.invalid",
      "F.values: decrease, which 'anneal' cannot use; expected values that never decrease, or method 'dp'",
    );
  }
  if (method === "anneal" && order === "any") {
    throw new TreadleError(
      "problem.invalid",
      "order: 'any' is not searched by 'anneal', which keeps degrees sorted; use 'exact' or 'dp'",
    );
  }
  const degreeOptions = Object.entries(tokenTime)
    .map(([key, seconds]) => ({ degree: Number(key), tokenTime: seconds }))
    .sort((a, b) => b.degree - a.degree)
    .filter((option) => option.degree <= gpus);
  const sorted = sortedDescending(lengths);
  const tokensOf = asLongest(sorted, interferenceFactor(F));
  const problem = { sorted, options: degreeOptions, gpus, tokensOf, order };
  const used = method === "exact" && !monotone ? "dp" : method;
  const startedMs = nowMs?.() ?? 0;
  const solve = { exact: allocateExact, dp: allocateByDynamicProgram, anneal: (p: Allocation) => anneal(p, seed) }[
    used
  ];
  const found = solve(problem);
  const milliseconds = (nowMs?.() ?? 0) - startedMs;
  const stats = { milliseconds, method: used, probes: found?.probes ?? 0, evaluations: found?.evaluations ?? 0 };
  if (found === undefined) return { feasible: false, makespan: null, degrees: null, sizes: null, stats };
  const { makespan, degrees, sizes } = found;
  return { feasible: true, makespan, degrees, sizes, stats };
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

/**
 * The least makespan over every multiset of degrees, by bisection over doubles as in `placeExact`.
 *
 * For a bound B let reach[g] be the longest prefix of trajectories that g GPUs can finish within B: a worker of degree d
 * appended to reach[g-d] extends it by the longest run it can finish, and a longer prefix never hurts, so the maximum
 * over d is all that matters. `sorted` lets degrees come in descending phases; `any` takes them in any order.
 */
export function allocateExact({ sorted, options, gpus, tokensOf, order }: Allocation): Allocated | undefined {
  const n = sorted.length;
  const reach = new Int32Array(gpus + 1);
  /** index of the option that last extended reach[g]; -1 where the value is that of g - 1 or of nothing */
  const last = new Int32Array(gpus + 1);
  const from = new Int32Array(gpus + 1);
  const guess = options.map(() => 1);
  const run = new LongestRun(tokensOf);
  let probes = 0;

  const longestRun = (start: number, option: number, bound: number): number => {
    const left = n - start;
    if (left === 0) return 0;
    const size = run.find(start, options[option]!.tokenTime, bound, left, guess[option]!);
    guess[option] = size;
    return size;
  };

  /** The fewest GPUs that finish everything within `bound`, or -1. */
  const probe = (bound: number): number => {
    probes++;
    run.begin();
    reach.fill(0);
    last.fill(-1);
    const extend = (g: number, option: number): void => {
      const { degree } = options[option]!;
      if (degree > g) return;
      const start = reach[g - degree]!;
      const end = start + longestRun(start, option, bound);
      if (end <= reach[g]!) return;
      reach[g] = end;
      last[g] = option;
      from[g] = g - degree;
    };
    if (order === "any") {
      for (let g = 1; g <= gpus; g++) for (let option = 0; option < options.length; option++) extend(g, option);
    } else {
      for (let option = 0; option < options.length; option++) for (let g = 1; g <= gpus; g++) extend(g, option);
    }
    return reach.indexOf(n);
  };

  const read = (g: number, bound: number): Allocated => {
    const degrees: number[] = [];
    for (let at = g; at > 0 && last[at]! >= 0; at = from[at]!) degrees.push(options[last[at]!]!.degree);
    degrees.reverse();
    const sizes: number[] = [];
    let makespan = 0;
    let start = 0;
    for (const degree of degrees) {
      const option = options.findIndex((o) => o.degree === degree);
      const size = longestRun(start, option, bound);
      if (size > 0) makespan = Math.max(makespan, run.seconds);
      sizes.push(size);
      start += size;
    }
    return { makespan, degrees, sizes, probes, evaluations: run.evaluations };
  };

  const most = probe(Number.MAX_VALUE);
  if (most < 0) return undefined;
  let best = read(most, Number.MAX_VALUE);
  const fastest = Math.min(...options.map((option) => option.tokenTime));
  let floor = n === 0 ? 0 : tokensOf(0, 1) * fastest;
  while (floor < best.makespan) {
    const middle = between(floor, best.makespan);
    const bound = middle < best.makespan ? middle : floor;
    const g = probe(bound);
    if (g >= 0) best = read(g, bound);
    else floor = Math.max(floor, run.refused);
  }
  return { ...best, probes, evaluations: run.evaluations };
}

/**
 * The degrees of model parallelism for one rollout, in descending order: `allocate` with the queue-aware and noise-aware
 * F′ that a rollout's placement has. Undefined when no makespan is finite.
 */
export function allocateRollout(input: {
  readonly gpus: number;
  readonly tokenTime: Readonly<Record<string, number>>;
  readonly F: Interference;
  readonly maxBatch: number;
  readonly robust: number;
  readonly predictions: readonly number[];
  /** as `queueAwareFactor` has it, 1 being the paper's; default: as `scheduledEstimate` has it */
  readonly company?: number | undefined;
}): readonly number[] | undefined {
  const { gpus, tokenTime, F, maxBatch, robust, predictions, company } = input;
  const options = Object.entries(tokenTime)
    .map(([key, seconds]) => ({ degree: Number(key), tokenTime: seconds }))
    .sort((a, b) => b.degree - a.degree)
    .filter((option) => option.degree <= gpus);
  const estimate =
    company === undefined
      ? scheduledEstimate(interferenceFactor(F), maxBatch, robust)
      : paperEstimate(interferenceFactor(F), maxBatch, robust, company);
  const solve = neverDecreases(F) ? allocateExact : allocateByDynamicProgram;
  const sorted = sortedDescending(predictions);
  return solve({ sorted, options, gpus, tokensOf: estimate(sorted), order: "sorted" })?.degrees;
}

/** Formula 3 with GPUs as a second dimension, O(gpus n² degrees): exact for any F, and what `exact` is checked against. */
export function allocateByDynamicProgram({
  sorted,
  options,
  gpus,
  tokensOf,
  order,
}: Allocation): Allocated | undefined {
  const n = sorted.length;
  type Step = { readonly option: number; readonly size: number; readonly before: Step | undefined };
  // best[g][i]: least makespan of the first i trajectories on g GPUs, and how
  const best = Array.from({ length: gpus + 1 }, () => new Float64Array(n + 1).fill(Number.POSITIVE_INFINITY));
  const steps = Array.from({ length: gpus + 1 }, () => new Array<Step | undefined>(n + 1));
  for (const row of best) row[0] = 0;
  let evaluations = 0;
  const extend = (g: number, option: number): void => {
    const { degree, tokenTime } = options[option]!;
    if (degree > g) return;
    const before = best[g - degree]!;
    const row = best[g]!;
    for (let i = 1; i <= n; i++) {
      for (let k = 0; k < i; k++) {
        evaluations++;
        const seconds = Math.max(before[k]!, tokensOf(k, i - k) * tokenTime);
        if (!(seconds < row[i]!)) continue;
        row[i] = seconds;
        steps[g]![i] = { option, size: i - k, before: steps[g - degree]![k] };
      }
    }
  };
  if (order === "any") {
    for (let g = 1; g <= gpus; g++) for (let option = 0; option < options.length; option++) extend(g, option);
  } else {
    for (let option = 0; option < options.length; option++) for (let g = 1; g <= gpus; g++) extend(g, option);
  }
  let g = 0;
  for (let candidate = 1; candidate <= gpus; candidate++) if (best[candidate]![n]! < best[g]![n]!) g = candidate;
  if (best[g]![n] === Number.POSITIVE_INFINITY) return undefined;
  const degrees: number[] = [];
  const sizes: number[] = [];
  for (let step = steps[g]![n]; step !== undefined; step = step.before) {
    degrees.unshift(options[step.option]!.degree);
    sizes.unshift(step.size);
  }
  return { makespan: best[g]![n]!, degrees, sizes, probes: 1, evaluations };
}

/** `treadle solve allocate`. */
export const allocateProblem: Problem = { schema: AllocateProblem, methods: allocateMethods, solve: solveAllocate };
