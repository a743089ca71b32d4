import { Bounds, makeGrid } from "./bounds.ts";
import { evaluateSchedule } from "./evaluate.ts";
import type { Operations, PlanModel } from "./model.ts";
import type { Found } from "./naive.ts";
import type { Schedule } from "./problem.ts";
import { refineSplits } from "./refine.ts";
import type { Rough, RoughWay } from "./rough.ts";
import { Search } from "./search.ts";

export type FastResult = Found & { readonly bound: number; readonly states: number; readonly candidates: number };

/** Levels up to `dense` are all on the grid of bounds; above, each is `ratio` times the one before. */
export type GridShape = { readonly dense: number; readonly ratio: number };

const fineGrid: GridShape = { dense: 64, ratio: 1.05 };
const coarseGrid: GridShape = { dense: 32, ratio: 1.1 };

/**
 * Up to so many levels, or with many cuts (a chain of ten has 165), making the bounds is most of the work, and coarser ones
 * pay. Above, what coarse bounds leave open makes the slowest searches several times slower.
 */
const fewLevelsForBounds = 2048;
const manyCuts = 500;

function gridFor(model: PlanModel, checkDeadline: () => void): GridShape {
  const isCoarse = model.levels <= fewLevelsForBounds || hasMoreCuts(model, manyCuts, checkDeadline);
  return isCoarse ? coarseGrid : fineGrid;
}

function hasMoreCuts(model: PlanModel, limit: number, checkDeadline: () => void): boolean {
  const seen = new Set([model.all]);
  let numCuts = 0;
  for (const set of seen) {
    checkDeadline();
    numCuts += set.cuts.length;
    if (numCuts > limit) return true;
    for (const { first, second } of set.cuts) seen.add(first).add(second);
  }
  return false;
}

/**
 * The least time, exactly, or the best found when `checkDeadline` throws `DeadlinePassed`.
 *
 * The search is `search.ts`, its bounds `bounds.ts`. The grid decides only how long it takes.
 */
export function solveFast(
  model: PlanModel,
  operations: Operations,
  checkDeadline: () => void,
  { dense, ratio }: GridShape = gridFor(model, checkDeadline),
): FastResult {
  // Without splits nothing has fewer than all devices, so the grid is that one level.
  const grid = operations.spatial ? makeGrid(model.levels, dense, ratio) : Int32Array.of(model.levels);
  const bounds = new Bounds(model, operations, grid, checkDeadline);
  const search = new Search(model, bounds, operations, checkDeadline);
  const found = search.run();
  return { ...found, states: search.states + bounds.numRows(), candidates: search.candidates + bounds.evaluations };
}

/** Refining looks at every split of every level. */
export const mostRefinedLevels = 2048;

/** A chain of four has 10 cuts. With so few a search is done as soon as its bounds are, at least on so many levels. */
const fewCuts = 12;
const fewLevels = 64;

/**
 * A good schedule without a search that proves it: what the bounds find on few levels, with its splits made
 * the best for what it does. For the purely spatial runner-up, whose last few percent decide nothing.
 */
export function solveNearly(
  model: PlanModel,
  operations: Operations,
  rough: Rough,
  checkDeadline: () => void,
): FastResult {
  if (model.levels <= fewLevels || !hasMoreCuts(model, fewCuts, checkDeadline))
    return solveFast(model, operations, checkDeadline);
  const refines = model.levels <= mostRefinedLevels;
  const { bounds, search } = refines ? rough.way("spatial") : coarsely(model, operations, checkDeadline);
  const found = search.first();
  if (found === null) return solveFast(model, operations, checkDeadline);
  const timeOf = (one: Schedule): number => evaluateSchedule(model, one)[model.objective] ?? Number.POSITIVE_INFINITY;
  const refined = refines ? refineSplits(model, found) : found;
  const [before, after] = [timeOf(found), timeOf(refined)];
  const [time, schedule] = after <= before ? [after, refined] : [before, found];
  return { time, schedule, bound: 0, states: bounds.numRows(), candidates: bounds.evaluations };
}

function coarsely(model: PlanModel, operations: Operations, checkDeadline: () => void): RoughWay {
  const grid = makeGrid(model.levels, coarseGrid.dense, coarseGrid.ratio);
  const bounds = new Bounds(model, operations, grid, checkDeadline, false);
  return { bounds, search: new Search(model, bounds, operations, checkDeadline) };
}
