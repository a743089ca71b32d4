import { Bounds, DeadlinePassed, limitSlack } from "./bounds.ts";
import { evaluateSchedule } from "./evaluate.ts";
import type { GridShape } from "./grid.ts";
import type { Operations, PlanModel } from "./model.ts";
import type { Found } from "./naive.ts";
import { Outside } from "./outside.ts";
import type { Schedule } from "./problem.ts";
import { refineSplits } from "./refine.ts";
import type { Rough } from "./rough.ts";
import { Search } from "./search.ts";

export type FastResult = Found & { readonly bound: number; readonly states: number; readonly candidates: number };

/**
 * Coarse bounds are soon made, but where many schedules take nearly the same they leave the search too much. It then
 * begins again with finer ones, which need to be made for less, within what was found.
 */
const gridShapes: readonly GridShape[] = [
  { dense: 32, ratio: 1.1 },
  { dense: 64, ratio: 1.05 },
  { dense: 128, ratio: 1.02 },
  { dense: 256, ratio: 1.01 },
];

/** A candidate costs as much time as so many splits that bounds are made of. */
const candidateWork = 16;

/** Candidates of a search before it begins again, beside so many by evaluation of its bounds. */
const fewCandidates = 40_000;
const candidatesByEvaluation = 0.25;

export type FastOptions = {
  /** nothing slower is asked for */
  readonly limit?: number;
  /** of the grids of bounds, the coarsest first */
  readonly shapes?: readonly GridShape[];
  /** of these the first so many only leave out what no schedule within the limit has; they are not searched */
  readonly numNarrowing?: number;
  /** splits looked at for bounds, and `candidateWork` a candidate, after which it ends as at a deadline */
  readonly mostWork?: number;
};

/**
 * The least time, exactly, or the best found when `checkDeadline` throws `DeadlinePassed`.
 *
 * The search is `search.ts`, its bounds `bounds.ts`. The grids decide only how long it takes.
 */
export function solveFast(
  model: PlanModel,
  operations: Operations,
  checkDeadline: () => void,
  {
    limit = Number.POSITIVE_INFINITY,
    shapes = gridShapes,
    numNarrowing = 0,
    mostWork = Number.POSITIVE_INFINITY,
  }: FastOptions = {},
): FastResult {
  // Taking turns alone is soon searched, and nothing slower than its best is worth a look.
  const turns = { temporal: true, spatial: false };
  let within = limit;
  if (operations.temporal && operations.spatial) within = Math.min(limit, solveFast(model, turns, checkDeadline).time);
  let best = nothingFound;
  let [states, candidates, work] = [0, 0, 0];
  let outside: Outside | undefined;
  for (const [i, shape] of shapes.entries()) {
    // Without splits nothing has fewer than all devices, so the grid is that one level.
    const grid = model.grid(operations.spatial ? shape : undefined);
    const isLast = i === shapes.length - 1 || grid.levels.length === model.levels;
    let isSpent = false;
    const checkBoth = (): void => {
      checkWork();
      const most = fewCandidates + bounds.evaluations * candidatesByEvaluation;
      isSpent = !isLast && search.candidates > most;
      if (isSpent) throw new DeadlinePassed();
    };
    const workOf = (): number => bounds.evaluations + candidateWork * search.candidates;
    const checkWork = (): void => {
      checkDeadline();
      if (work + workOf() > mostWork) throw new DeadlinePassed();
    };
    const bounds = new Bounds(model, operations, grid, checkWork, { limit: within, outside });
    const search = new Search(model, bounds, operations, checkBoth);
    const isSearched = i >= numNarrowing || isLast || !Outside.isFor(model, operations);
    if (!isSearched) {
      within = Math.min(within, bounds.upperAt(model.all, 0, model.levels));
      outside = new Outside(model, operations, bounds, within, checkWork);
      work += workOf() + outside.evaluations;
      candidates += bounds.evaluations + outside.evaluations;
      states += bounds.numRows();
      continue;
    }
    try {
      // Also what takes no time is found within no time.
      const found = search.run(within * (1 + limitSlack) + Number.MIN_VALUE);
      best = found.time <= best.time ? { ...best, ...found } : { ...best, bound: Math.max(best.bound, found.bound) };
    } catch (error) {
      if (!(error instanceof DeadlinePassed) || (!isSpent && i === 0)) throw error;
    }
    states += search.states + bounds.numRows();
    candidates += search.candidates + bounds.evaluations;
    work += workOf();
    if (!isSpent) break;
    within = Math.min(within, best.time);
    if (Outside.isFor(model, operations)) outside = new Outside(model, operations, bounds, within, checkDeadline);
  }
  return { ...best, states, candidates };
}

/**
 * Limits to search within, one after the other until something is found: a mode is often not much slower than what is
 * known to be the best of all, and a search within a limit is the shorter the lower it is.
 */
export function* limitsAbove(least: number): Generator<number> {
  if (Number.isFinite(least)) for (const factor of [2.5, 6]) yield least * factor;
  yield Number.POSITIVE_INFINITY;
}

export const nothingFound: FastResult = {
  time: Number.POSITIVE_INFINITY,
  schedule: null,
  bound: 0,
  states: 0,
  candidates: 0,
};

/** Refining looks at every split of every level. */
export const mostRefinedLevels = 2048;

/** Up to so many levels times components a search is done about as soon as its bounds are. */
const mostRough = 1024;

/** Splits that a proof of a runner-up may look at: about a fifth of a second. */
const mostProofWork = 12_000_000;
const proofShapes = {
  shapes: [{ dense: 16, ratio: 1.15 }, { dense: 64, ratio: 1.05 }, ...gridShapes.slice(2)],
  numNarrowing: 2,
};

export type RunnerUp = {
  /** the model, or of it only the schedules that count */
  readonly model: PlanModel;
  readonly operations: Operations;
  /** a good schedule, soon */
  readonly roughly: (limit: number) => FastResult;
  /** seconds that no schedule is below */
  readonly least: number;
};

/**
 * The best schedule of a mode that is not the best of all: proven where that is soon done, else the best found, with what
 * no schedule of the mode is below: `Infinity` where it is proven that there is none. The proof looks only for what is faster
 * than what was found roughly.
 */
export function solveRunnerUp({ model, operations, roughly, least }: RunnerUp, checkDeadline: () => void): FastResult {
  const soon = (): FastResult => {
    for (const limit of limitsAbove(least)) {
      const rough = roughly(limit);
      if (rough.schedule !== null) return rough;
    }
    return nothingFound;
  };
  let found = nothingFound;
  const known = Number.isFinite(least) ? least : 0;
  const how = model.levels * model.dag.components.length > mostRough ? proofShapes : { shapes: gridShapes };
  try {
    for (const limit of limitsAbove(least)) {
      const proof = solveFast(model, operations, checkDeadline, { limit, ...how, mostWork: mostProofWork });
      const better = proof.time < found.time ? proof : found;
      const counts = { states: found.states + proof.states, candidates: found.candidates + proof.candidates };
      found = { ...better, ...counts, bound: Math.min(better.time, Math.max(known, proof.bound)) };
      if (found.schedule !== null) break;
    }
  } catch (error) {
    if (!(error instanceof DeadlinePassed)) throw error;
    if (found.schedule === null) found = soon();
    found = { ...found, bound: Math.min(found.time, Math.max(known, coarseBound(model, operations, found.time))) };
  }
  return found;
}

/** What no schedule is below, by coarse bounds alone, which are soon made. */
function coarseBound(model: PlanModel, operations: Operations, limit: number): number {
  const bounds = new Bounds(model, operations, model.grid(gridShapes[0]), () => {}, { limit });
  return bounds.lowerAt(model.all, 0, model.levels);
}

/** On few levels, with splits then made the best for what the schedule does. */
export function solveRoughly(model: PlanModel, rough: Rough, limit: number): FastResult {
  const { bounds, search } = rough.way("spatial", limit);
  const found = bounds.upperAt(model.all, 0, model.levels) <= limit ? search.first() : null;
  if (found === null) return nothingFound;
  const timeOf = (one: Schedule): number => evaluateSchedule(model, one)[model.objective] ?? Number.POSITIVE_INFINITY;
  const refined = model.levels <= mostRefinedLevels ? refineSplits(model, found) : found;
  const [before, after] = [timeOf(found), timeOf(refined)];
  const [time, schedule] = after <= before ? [after, refined] : [before, found];
  return { time, schedule, bound: 0, states: bounds.numRows(), candidates: bounds.evaluations };
}
