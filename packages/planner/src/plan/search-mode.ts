/** One search for one mode: over the allocations of pools, and over both objectives where steps overlap. */
import { DeadlinePassed } from "./bounds.ts";
import { evaluateSchedule, overlapped } from "./evaluate.ts";
import { type FastResult, nothingFound, solveFast, solveRunnerUp } from "./fast.ts";
import { solveFullUse } from "./full-use.ts";
import { lastResort } from "./last-resort.ts";
import { compileModel, type Objective, operationsOf, type PlanModel } from "./model.ts";
import { solveNaive } from "./naive.ts";
import { type Allocation, allocationsOf, fullAllocationsOf, hasEverySplit, wholePools } from "./pool-allocation.ts";
import type { PlanMode, PlanProblem } from "./problem.ts";

/** The first is the default. */
export const planMethods = ["fast", "naive"] as const;
export type PlanMethod = (typeof planMethods)[number];

export type SearchOptions = {
  /** `hybrid`: only schedules that both take turns and own devices */
  readonly mode: PlanMode | "any";
  readonly method: PlanMethod;
  /** seconds that no schedule is below, where this is about a runner-up: one that need not be proven */
  readonly least?: number | undefined;
  /** only schedules that leave no device idle; `least` then bounds them from below */
  readonly full?: boolean | undefined;
  readonly checkDeadline: () => void;
};

/** The models of one problem, shared by the searches of all modes: one an allocation and objective. */
export class Models {
  readonly problem: PlanProblem;
  readonly allocations: readonly Allocation[];
  /** every component all of its pool: no allocation beats it */
  readonly relaxed: Allocation;
  #full: readonly Allocation[] | undefined;
  readonly #models = new Map<Allocation, Map<Objective, PlanModel>>();

  constructor(problem: PlanProblem) {
    this.problem = problem;
    this.allocations = allocationsOf(problem);
    this.relaxed = wholePools(problem);
  }

  /** those that leave no device of a pool idle */
  get fullAllocations(): readonly Allocation[] {
    this.#full ??= fullAllocationsOf(this.problem);
    return this.#full;
  }

  of(allocation: Allocation, objective: Objective): PlanModel {
    const known = this.#models.get(allocation) ?? new Map<Objective, PlanModel>();
    this.#models.set(allocation, known);
    const model = known.get(objective) ?? compileModel(this.problem, { allocation, objective });
    known.set(objective, model);
    return model;
  }
}

/** The best schedule with these operations and a bound that none of them beats. */
export function searchMode(models: Models, how: SearchOptions): FastResult {
  const allocations = how.full ? models.fullAllocations : models.allocations;
  const results = allocations.map((allocation) => searchOverlap(models, allocation, how));
  const best = results.reduce((a, b) => (b.time < a.time ? b : a), nothingFound);
  const sum = (key: "states" | "candidates"): number => results.reduce((total, result) => total + result[key], 0);
  const counts = { states: sum("states"), candidates: sum("candidates") };
  // Splits that were left out cannot beat a component that has all of its pool, with nothing in its way.
  const bound = hasEverySplit(models.problem)
    ? Math.min(...results.map((result) => result.bound))
    : searchOverlap(models, models.relaxed, how).bound;
  return { ...best, bound: Math.min(bound, best.time), ...counts };
}

/**
 * Where steps overlap, the seconds between their ends are at least the least that any schedule's busiest devices work,
 * and at least the share of a step alone that cannot be hidden. The schedules of both leasts are tried; where the first
 * is short enough as a whole, as it is with two stages or with as many chunks as stages, it is proven to be the best; where
 * it is not, schedules between the two are looked for (`weighBoth`).
 */
function searchOverlap(models: Models, allocation: Allocation, how: SearchOptions): FastResult {
  const { problem } = models;
  const model = models.of(allocation, "step");
  const step = searchOnce(model, how);
  if (problem.maxStaleness === 0 || how.method === "naive") return step;
  const busyModel = models.of(allocation, "busy");
  const busy = searchOnce(busyModel, how);
  const tried = [busy, step].map((result) => {
    const time = result.schedule === null ? null : evaluateSchedule(model, result.schedule).time;
    return { ...result, time: time ?? Number.POSITIVE_INFINITY };
  });
  const best = tried.reduce((a, b) => (b.time < a.time ? b : a));
  const bound = overlapped(problem, step.bound, busy.bound);
  // The two searches add up their seconds in another order than the definition does.
  const isProven = best.time <= bound * (1 + 1e-12);
  const counts = { states: step.states + busy.states, candidates: step.candidates + busy.candidates };
  if (isProven) return { ...best, bound: best.time, ...counts };
  return { ...weighBoth(model, { ...best, bound }, how), ...counts };
}

/** Candidates of a search for both objectives at once: about a third of a second. */
const mostWeighed = 50_000;

/** Something between the two leasts may take less than either; where there is little to look at, it is found, or proven that there is none. */
function weighBoth(
  whole: PlanModel,
  known: FastResult,
  { mode, full = false, least, checkDeadline }: SearchOptions,
): FastResult {
  const model = withSet(whole, mode, least);
  // Of every level there are as many splits as levels below it.
  if (model === undefined || model.levels ** 2 > mostWeighed) return known;
  let candidates = 0;
  const spend = (): void => {
    if (++candidates > mostWeighed) throw new DeadlinePassed();
    if ((candidates & 1023) === 0) checkDeadline();
  };
  whole.pace.check = checkDeadline;
  try {
    const found = solveNaive(model, operationsOf(mode === "any" ? "hybrid" : mode), { full, limit: known.time, spend });
    return found.schedule === null ? { ...known, bound: known.time } : { ...known, ...found, bound: found.time };
  } catch (error) {
    if (!(error instanceof DeadlinePassed)) throw error;
    return known;
  } finally {
    whole.pace.check = () => {};
  }
}

/** Undefined where no schedule is of the mode. */
function withSet(whole: PlanModel, mode: SearchOptions["mode"], least: number | undefined): PlanModel | undefined {
  const all = mode === "hybrid" ? (whole.mixed() ?? (least === undefined ? whole.all : undefined)) : whole.all;
  return all && { ...whole, all };
}

function searchOnce(whole: PlanModel, { mode, method, least, full = false, checkDeadline }: SearchOptions): FastResult {
  const model = withSet(whole, mode, least);
  if (model === undefined) return { ...nothingFound, bound: Number.POSITIVE_INFINITY };
  const operations = operationsOf(mode === "any" ? "hybrid" : mode);
  if (method === "naive") {
    const found = solveNaive(model, operations, { full });
    return { ...found, bound: found.time };
  }
  whole.pace.check = checkDeadline;
  try {
    if (full) return solveFullUse(model, operations, least ?? Number.POSITIVE_INFINITY, checkDeadline);
    if (least === undefined || mode === "any" || mode === "temporal")
      return solveFast(model, operations, checkDeadline);
    return solveRunnerUp(model, operations, least, checkDeadline);
  } catch (error) {
    if (!(error instanceof DeadlinePassed)) throw error;
    const resort = lastResort(whole, operations);
    const found = mode === "hybrid" ? { ...nothingFound, bound: resort.bound } : resort;
    return { ...found, bound: Math.min(found.time, Math.max(found.bound, full ? (least ?? 0) : 0)) };
  } finally {
    whole.pace.check = () => {};
  }
}
