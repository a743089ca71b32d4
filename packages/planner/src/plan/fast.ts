import { Bounds, makeGrid } from "./bounds.ts";
import type { Operations, PlanModel } from "./model.ts";
import type { Found } from "./naive.ts";
import { Search } from "./search.ts";

export type FastResult = Found & { readonly bound: number; readonly states: number; readonly candidates: number };

/** Levels up to this are all on the grid of bounds; above, each is `gridRatio` times the one before. */
const denseLevels = 32;
const gridRatio = 1.1;

/**
 * The least time, exactly, or the best found when `checkDeadline` throws `DeadlinePassed`.
 *
 * The search is `search.ts`, its bounds `bounds.ts`. Ties are broken by the order of cuts.
 */
export function solveFast(model: PlanModel, operations: Operations, checkDeadline: () => void): FastResult {
  // Without splits nothing has fewer than all devices, so the grid is that one level.
  const grid = operations.spatial ? makeGrid(model.levels, denseLevels, gridRatio) : Int32Array.of(model.levels);
  const bounds = new Bounds(model, operations, grid, checkDeadline);
  const search = new Search(model, bounds, operations, checkDeadline);
  const found = search.run();
  return { ...found, states: search.states + bounds.numRows(), candidates: search.candidates + bounds.evaluations };
}
