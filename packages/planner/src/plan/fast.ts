import { Bounds, DeadlinePassed, limitSlack } from "./bounds.ts";
import { evaluateSchedule } from "./evaluate.ts";
import type { GridShape } from "./grid.ts";
import type { Operations, PlanModel } from "./model.ts";
import type { Found } from "./naive.ts";
import { Outside } from "./outside.ts";
import type { Schedule } from "./problem.ts";
import { refineSplits } from "./refine.ts";
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
  /** the last whose bounds were made */
  let made: Search | undefined;
  let isOver = false;
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
    const isSearched = isLast || i >= numNarrowing;
    try {
      const least = bounds.lowerAt(model.all, 0, model.levels);
      best = { ...best, bound: Math.max(best.bound, Math.min(least, within)) };
      made = search;
      if (isSearched) {
        // Also what takes no time is found within no time.
        const found = search.run(within * (1 + limitSlack) + Number.MIN_VALUE);
        // Where nothing is within the limit, that is all that is known.
        const bound = Math.max(best.bound, found.schedule === null ? Math.min(found.bound, within) : found.bound);
        best = found.time <= best.time ? { ...best, ...found, bound } : { ...best, bound };
      } else within = Math.min(within, bounds.upperAt(model.all, 0, model.levels));
      within = Math.min(within, best.time);
      if ((!isSearched || isSpent) && Number.isFinite(within) && Outside.isFor(model, operations))
        outside = new Outside(model, operations, bounds, within, checkWork);
      work += outside?.evaluations ?? 0;
    } catch (error) {
      if (!(error instanceof DeadlinePassed) || made === undefined) throw error;
      isSpent = false;
      isOver = true;
    }
    states += search.states + bounds.numRows();
    candidates += search.candidates + bounds.evaluations;
    work += workOf();
    if (isOver || (isSearched && !isSpent)) break;
  }
  const isProven = best.bound >= Math.min(best.time, within);
  const rough = isProven || made === undefined ? null : roughly(model, made);
  if (rough !== null && rough.time < best.time) best = { ...best, ...rough };
  return { ...best, bound: Math.min(best.bound, best.time), states, candidates };
}

/** Refining looks at every split of every level. */
const mostRefinedLevels = 2048;

/** What bounds show without a search, with its splits made the best for what it does. */
function roughly(model: PlanModel, search: Search): Found | null {
  const first = search.first();
  if (first === null) return null;
  const timeOf = (one: Schedule): number => evaluateSchedule(model, one)[model.objective] ?? Number.POSITIVE_INFINITY;
  const refined = model.levels <= mostRefinedLevels ? refineSplits(model, first) : first;
  const [before, after] = [timeOf(first), timeOf(refined)];
  return after <= before ? { time: after, schedule: refined } : { time: before, schedule: first };
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

/** Splits that a proof of a runner-up may look at: about a fifth of a second. */
const mostProofWork = 12_000_000;
/** A mode that is not the best has its best proven within a limit that is known to be good, so it is worth narrowing first. */
const proofShapes: readonly GridShape[] = [
  { dense: 16, ratio: 1.15 },
  { dense: 64, ratio: 1.05 },
  ...gridShapes.slice(2),
];

/**
 * The best schedule of a mode that is not the best of all (`least` seconds, which none is below): proven where that is soon
 * done, else the best found, with what no schedule of the mode is below: `Infinity` where it is proven that there is none.
 */
export function solveRunnerUp(
  model: PlanModel,
  operations: Operations,
  least: number,
  checkDeadline: () => void,
): FastResult {
  let found = nothingFound;
  const how = { shapes: proofShapes, numNarrowing: 2, mostWork: mostProofWork };
  for (const limit of limitsAbove(least)) {
    const next = solveFast(model, operations, checkDeadline, { ...how, limit });
    const counts = { states: found.states + next.states, candidates: found.candidates + next.candidates };
    found = { ...next, ...counts };
    if (found.schedule !== null) break;
  }
  let bound = Math.max(Number.isFinite(least) ? least : 0, found.bound);
  // The nearer the limit is, the more bounds leave out.
  if (found.schedule !== null && bound < found.time)
    bound = Math.max(bound, coarseBound(model, operations, found.time));
  return { ...found, bound: Math.min(found.time, bound) };
}

/** What no schedule is below, by coarse bounds alone, which are soon made. */
function coarseBound(model: PlanModel, operations: Operations, limit: number): number {
  const bounds = new Bounds(model, operations, model.grid(gridShapes[0]), () => {}, { limit });
  return bounds.lowerAt(model.all, 0, model.levels);
}
