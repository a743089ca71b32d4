import { bestSecondsByLevel } from "./component-time.ts";
import { bitsOf, collapseCycles, type Dag, downClosedParts, hasEdgeBetween, swapSeconds } from "./graph.ts";
import type { PlanMode, PlanProblem } from "./problem.ts";

/** `count` chunks of the item count at `itemsIndex`. */
export type Chunking = { readonly itemsIndex: number; readonly items: number; readonly count: number };

/** One way to cut a set of components in two, `first` before `second`. */
export type Cut = {
  readonly first: PlanSet;
  readonly second: PlanSet;
  readonly swap: number;
  /** no edge leads from first to second, so they may also run side by side */
  readonly independent: boolean;
};

/** A subgraph. Sets are shared, so identity is equality. */
export type PlanSet = {
  readonly index: number;
  readonly mask: number;
  /** the only component's index, or -1 */
  readonly leaf: number;
  readonly cuts: readonly Cut[];
};

/**
 * A plan problem made ready for search. Devices are counted in levels of `step` devices, because with `splits:
 * {multipleOf: k}` only multiples of k can occur (and none at all, so one level, where k does not divide the devices).
 */
export type PlanModel = {
  readonly problem: PlanProblem;
  readonly dag: Dag;
  readonly step: number;
  readonly levels: number;
  /** item counts that can occur, largest first; [0] is the batch */
  readonly items: readonly number[];
  /** allowed chunkings by items index; the first is the whole */
  readonly chunkings: readonly (readonly Chunking[])[];
  /** least seconds of component `leaf` for items[itemsIndex] by level (entry 0 is Infinity) */
  leafSeconds(leaf: number, itemsIndex: number): Float64Array;
  /** the subgraph of a mask, with its cuts; memoised */
  set(mask: number): PlanSet;
  readonly all: PlanSet;
  numSets(): number;
};

export function divisorsOf(number: number): number[] {
  const low: number[] = [];
  const high: number[] = [];
  for (let d = 1; d * d <= number; d++) {
    if (number % d !== 0) continue;
    low.push(d);
    if (d * d !== number) high.push(number / d);
  }
  return [...low, ...high.reverse()];
}

export function chunkAllowed(problem: PlanProblem, items: number, chunk: number): boolean {
  if (items % chunk !== 0) return false;
  return chunk === items || problem.granularities === "divisors" || problem.granularities.includes(chunk);
}

export function compileModel(problem: PlanProblem): PlanModel {
  const dag = collapseCycles(problem);
  const multiple = problem.splits === "all" ? 1 : problem.splits.multipleOf;
  const step = problem.devices % multiple === 0 ? multiple : problem.devices;
  const levels = problem.devices / step;

  const items = divisorsOf(problem.batch)
    .filter((chunk) => chunkAllowed(problem, problem.batch, chunk))
    .reverse();
  const chunkings = items.map((whole) =>
    items.flatMap((chunk, itemsIndex) =>
      chunkAllowed(problem, whole, chunk) ? [{ itemsIndex, items: chunk, count: whole / chunk }] : [],
    ),
  );

  const limits = { batch: problem.batch, memoryPerDevice: problem.memoryPerDevice ?? Number.POSITIVE_INFINITY };
  const seconds = new Map<number, Float64Array>();
  const leafSeconds = (leaf: number, itemsIndex: number): Float64Array => {
    const key = leaf * items.length + itemsIndex;
    let row = seconds.get(key);
    if (row === undefined) {
      row = bestSecondsByLevel(dag.components[leaf]!.members, levels, step, items[itemsIndex]!, limits);
      seconds.set(key, row);
    }
    return row;
  };

  const sets = new Map<number, PlanSet>();
  const set = (mask: number): PlanSet => {
    const known = sets.get(mask);
    if (known !== undefined) return known;
    const single = (mask & (mask - 1)) === 0;
    let cuts: Cut[] | undefined;
    const created: PlanSet = {
      index: sets.size,
      mask,
      leaf: single ? [...bitsOf(mask)][0]! : -1,
      // Cuts appear when first looked at: a search that stops early never lists those of every subgraph.
      get cuts() {
        cuts ??= downClosedParts(dag, mask).map((part) => ({
          first: set(part),
          second: set(mask & ~part),
          swap: swapSeconds(dag, part, mask & ~part),
          independent: !hasEdgeBetween(dag, part, mask & ~part),
        }));
        return cuts;
      },
    };
    sets.set(mask, created);
    return created;
  };
  const all = set(2 ** dag.components.length - 1);
  return { problem, dag, step, levels, items, chunkings, leafSeconds, set, all, numSets: () => sets.size };
}

/** Which operations a search may use; `hybrid` stands for all of them. */
export type Operations = { readonly temporal: boolean; readonly spatial: boolean };

export const operationsOf = (mode: PlanMode): Operations => ({
  temporal: mode !== "spatial",
  spatial: mode !== "temporal",
});

/** Seconds of a pipeline of two stages over `count` chunks. */
export function pipelineSeconds(first: number, second: number, count: number): number {
  return count === 1 ? first + second : first + second + (count - 1) * Math.max(first, second);
}
