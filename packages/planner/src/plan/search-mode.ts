/** One search for one mode: over the allocations of pools, and over both objectives where steps overlap. */
import { DeadlinePassed } from "./bounds.ts";
import { evaluateSchedule, overlapped } from "./evaluate.ts";
import { type FastResult, solveFast, solveNearly } from "./fast.ts";
import { lastResort } from "./last-resort.ts";
import { compileModel, type ModelOptions, type Operations, type PlanModel } from "./model.ts";
import { solveNaive } from "./naive.ts";
import { allocationsOf, hasEverySplit } from "./pool-allocation.ts";
import type { PlanProblem } from "./problem.ts";

/** The first is the default. */
export const planMethods = ["fast", "naive"] as const;
export type PlanMethod = (typeof planMethods)[number];

/** `nearly`: as good as can be found without proving it, where proving takes long. */
export type SearchOptions = {
  readonly operations: Operations;
  readonly method: PlanMethod;
  readonly nearly: boolean;
  readonly checkDeadline: () => void;
};

/** The best schedule with these operations and a bound that none of them beats. */
export function searchMode(problem: PlanProblem, how: SearchOptions): FastResult {
  const search = (options: ModelOptions): FastResult => searchOnce(compileModel(problem, options), how);
  const results = allocationsOf(problem).map((allocation) => searchOverlap(problem, allocation, search));
  const best = results.reduce((a, b) => (b.time < a.time ? b : a));
  const sum = (key: "states" | "candidates"): number => results.reduce((total, result) => total + result[key], 0);
  const counts = { states: sum("states"), candidates: sum("candidates") };
  // Splits that were left out cannot beat a component that has all of its pool, with nothing in its way.
  const bound = hasEverySplit(problem)
    ? Math.min(...results.map((result) => result.bound))
    : searchOverlap(problem, undefined, search).bound;
  return { ...best, bound: Math.min(bound, best.time), ...counts };
}

/**
 * Where steps overlap, the seconds between their ends are at least the least that any schedule's busiest devices work,
 * and at least the share of a step alone that cannot be hidden. The schedules of both leasts are tried; where the first
 * is short enough as a whole, as it is with two stages or with as many chunks as stages, it is proven to be the best.
 */
function searchOverlap(
  problem: PlanProblem,
  allocation: ModelOptions["allocation"],
  search: (options: ModelOptions) => FastResult,
): FastResult {
  const pools = allocation === undefined ? {} : { allocation };
  const step = search({ ...pools, objective: "step" });
  if (problem.maxStaleness === 0) return step;
  const busy = search({ ...pools, objective: "busy" });
  const model = compileModel(problem, pools);
  const tried = [busy, step].map((result) => {
    const time = result.schedule === null ? null : evaluateSchedule(model, result.schedule).time;
    return { ...result, time: time ?? Number.POSITIVE_INFINITY };
  });
  const best = tried.reduce((a, b) => (b.time < a.time ? b : a));
  const bound = overlapped(problem, step.bound, busy.bound);
  // The two searches add up their seconds in another order than the definition does.
  const proven = best.time <= bound * (1 + 1e-12) ? best.time : bound;
  return { ...best, bound: proven, states: step.states + busy.states, candidates: step.candidates + busy.candidates };
}

function searchOnce(model: PlanModel, { operations, method, nearly, checkDeadline }: SearchOptions): FastResult {
  if (method === "naive") {
    const found = solveNaive(model, operations);
    return { ...found, bound: found.time };
  }
  try {
    return (nearly ? solveNearly : solveFast)(model, operations, checkDeadline);
  } catch (error) {
    if (!(error instanceof DeadlinePassed)) throw error;
    return lastResort(model, operations);
  }
}
