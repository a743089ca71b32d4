import { Bounds, makeGrid } from "./bounds.ts";
import type { Operations, PlanModel } from "./model.ts";
import type { Found } from "./naive.ts";
import { Search } from "./search.ts";

export type FastResult = Found & { readonly bound: number; readonly states: number; readonly candidates: number };

/** Levels up to `dense` are all on the grid of bounds; above, each is `ratio` times the one before. */
export type GridShape = { readonly dense: number; readonly ratio: number };

const fineGrid: GridShape = { dense: 64, ratio: 1.05 };
const coarseGrid: GridShape = { dense: 32, ratio: 1.1 };

/** A chain of ten has 165 cuts. With many more, making the bounds is most of the work, and coarser ones pay. */
const manyCuts = 500;

function gridFor(model: PlanModel, checkDeadline: () => void): GridShape {
  const seen = new Set([model.all]);
  let numCuts = 0;
  for (const set of seen) {
    checkDeadline();
    numCuts += set.cuts.length;
    if (numCuts > manyCuts) return coarseGrid;
    for (const { first, second } of set.cuts) seen.add(first).add(second);
  }
  return fineGrid;
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
