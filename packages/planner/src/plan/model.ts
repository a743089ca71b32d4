import { leastSeconds, leastSecondsByLevel } from "./component-time.ts";
import { bitsOf, type Component, collapseCycles, type Dag, downClosedParts, hasEdgeBetween } from "./graph.ts";
import { Grid, type GridShape, makeGrid } from "./grid.ts";
import { type CompiledWishes, compileWishes, usableDevices, usedOf } from "./plan-wishes.ts";
import { type Allocation, mayRunAsOne, wholePools } from "./pool-allocation.ts";
import type { PlanMode, PlanNode, PlanProblem } from "./problem.ts";
import { fitTogether, limitsIn, turnSwap } from "./turn-swap.ts";

/** `count` chunks of the item count at `itemsIndex`. */
export type Chunking = { readonly itemsIndex: number; readonly items: number; readonly count: number };

/** One way to cut a set of components in two, `first` before `second`. */
export type Cut = {
  /** the parts on devices of their own */
  readonly first: PlanSet;
  readonly second: PlanSet;
  /** the parts taking turns: the same, except that turns within them do not come round (`swaps: "round"`) */
  readonly turnFirst: PlanSet;
  readonly turnSecond: PlanSet;
  /** whether they may take turns: not the members of a split cycle */
  readonly turns: boolean;
  /** whether they may own devices: not those that share a pool */
  readonly beside: boolean;
  /** one part needs no devices but those of its own pool, so both have all the others */
  readonly free: boolean;
  /** seconds of a swap; `calmSwap` from `calmLevel` on, where all fits in memory together */
  readonly swap: number;
  readonly calmSwap: number;
  readonly calmLevel: number;
  /** no edge leads from first to second, so they may also run side by side */
  readonly independent: boolean;
};

export const swapAt = (cut: Cut, level: number): number => (level >= cut.calmLevel ? cut.calmSwap : cut.swap);

/** A subgraph. Sets are shared, so identity is equality. */
export type PlanSet = {
  readonly index: number;
  readonly mask: number;
  /** of `PlanModel.leaves`: the only component, or the cycle that these are when collapsed; or -1 */
  readonly leaf: number;
  /** one component, so there are no cuts */
  readonly single: boolean;
  readonly cuts: readonly Cut[];
};

/** What a schedule of a subgraph has to do, whatever else it does: take turns, own devices, or both. */
type Need = { readonly turns: boolean; readonly beside: boolean };

const nothing: Need = { turns: false, beside: false };

/** What is minimised: the seconds of one step alone, or the seconds a step that the busiest devices work. */
export type Objective = "step" | "busy";

/**
 * A plan problem made ready for search. Devices are counted in levels of `step` devices, because with `splits:
 * {multipleOf: k}` only multiples of k can occur (and none at all, so one level, where k does not divide the devices).
 */
export type PlanModel = {
  readonly problem: PlanProblem;
  readonly objective: Objective;
  readonly dag: Dag;
  /** the components, then the cycles that may be collapsed or split */
  readonly leaves: readonly Component[];
  readonly wishes: CompiledWishes;
  /** components that use no devices but those of their pools */
  readonly freeMask: number;
  /** devices of each of these */
  readonly allocation: Allocation;
  readonly step: number;
  readonly levels: number;
  /** item counts that can occur, largest first; [0] is the batch */
  readonly items: readonly number[];
  /** allowed chunkings by items index; the first is the whole */
  readonly chunkings: readonly (readonly Chunking[])[];
  /** whether pipelines have three and more stages; for "busy" they would bring nothing */
  readonly kway: boolean;
  /** least seconds of `leaf` for items[itemsIndex] by level (entry 0 is Infinity) */
  leafSeconds(leaf: number, itemsIndex: number): Float64Array;
  /** levels at which bounds are made (`makeGrid`); without a shape, all of them at once alone. Memoised */
  grid(shape?: GridShape): Grid;
  /** the subgraph of a mask, with its cuts; memoised */
  set(mask: number): PlanSet;
  readonly all: PlanSet;
  /** the same, of which only schedules count that both take turns and own devices; undefined of a single component */
  mixed(): PlanSet | undefined;
  /** called with each cut that is listed; whoever searches within a time sets it, and throws */
  readonly pace: { check: () => void };
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

export type ModelOptions = { readonly objective?: Objective; readonly allocation?: Allocation };

/** Without an allocation, every component of a pool has all of it and nothing is in its way. */
export function compileModel(problem: PlanProblem, options: ModelOptions = {}): PlanModel {
  const { objective = "step", allocation = wholePools(problem) } = options;
  const dag = collapseCycles(problem);
  const multiple = problem.splits === "all" ? 1 : problem.splits.multipleOf;
  const usable = usableDevices(problem);
  const step = usable % multiple === 0 ? multiple : usable;
  const levels = usable / step;
  const wishes = compileWishes(problem, dag);

  const items = divisorsOf(problem.batch)
    .filter((chunk) => chunkAllowed(problem, problem.batch, chunk))
    .reverse();
  const chunkings = items.map((whole) =>
    items.flatMap((chunk, itemsIndex) =>
      chunkAllowed(problem, whole, chunk) ? [{ itemsIndex, items: chunk, count: whole / chunk }] : [],
    ),
  );

  const leaves = [...dag.components, ...dag.cycles.flatMap(({ component }) => (component ? [component] : []))];
  const leafOfCycle = new Map(
    dag.cycles.flatMap(({ mask, component }) => (component ? [[mask, leaves.indexOf(component)] as const] : [])),
  );
  const seconds = new Map<number, Float64Array>();
  const leafSeconds = (leaf: number, itemsIndex: number): Float64Array => {
    const key = leaf * items.length + itemsIndex;
    let row = seconds.get(key);
    if (row === undefined) {
      const { members } = leaves[leaf]!;
      const { pool } = members[0]!;
      const limits = limitsIn(problem, pool);
      if (!wishes.mayBeOne(leaves[leaf]!)) row = new Float64Array(levels + 1).fill(Number.POSITIVE_INFINITY);
      else if (pool === undefined) row = leastSecondsByLevel(members, levels, step, items[itemsIndex]!, limits);
      else {
        const devices = Math.min(...members.map(({ id }) => allocation.devices.get(id)!));
        const size = { devices, items: items[itemsIndex]! };
        const isFull = members.some(({ id }) => allocation.full?.has(id));
        const mayBe = mayRunAsOne(allocation, members) && (!isFull || usedOf(problem, members, size) === devices);
        const least = mayBe ? leastSeconds(members, devices, size.items, limits) : Number.POSITIVE_INFINITY;
        row = new Float64Array(levels + 1).fill(least);
        row[0] = Number.POSITIVE_INFINITY;
      }
      seconds.set(key, row);
    }
    return row;
  };

  let freeMask = 0;
  const conflicts = dag.components.map(() => 0);
  const poolMasks = new Map<string | undefined, number>();
  for (const [i, { members }] of dag.components.entries()) {
    const { pool } = members[0]!;
    poolMasks.set(pool, (poolMasks.get(pool) ?? 0) | (1 << i));
    if (pool === undefined) continue;
    freeMask |= 1 << i;
    for (const [j, other] of dag.components.entries()) {
      const clash = members.some((a) => other.members.some((b) => allocation.sharing.has(`${a.id}\n${b.id}`)));
      if (i !== j && clash) conflicts[i]! |= 1 << j;
    }
  }

  /** Whether those of a pool have the same devices in both parts, where none of them may be idle. */
  const sharesAll = (first: number, second: number): boolean =>
    allocation.full === undefined ||
    [...poolMasks].every(
      ([pool, mask]) =>
        pool === undefined || [...bitsOf(first & mask)].every((bit) => (second & mask & ~conflicts[bit]!) === 0),
    );

  /** The least level at which all components of `mask` that use the problem's own devices fit there together. */
  const calmLevels = new Map<number, number>();
  const calmLevel = (mask: number): number => {
    const known = calmLevels.get(mask);
    if (known !== undefined) return known;
    const members = membersOf(mask & ~freeMask);
    let [from, to] = [1, levels + 1];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (fitTogether(problem, members, () => middle * step)) to = middle;
      else from = middle + 1;
    }
    const level = from > levels ? Number.POSITIVE_INFINITY : from;
    calmLevels.set(mask, level);
    return level;
  };
  const membersOf = (mask: number): PlanNode[] => [...bitsOf(mask)].flatMap((bit) => dag.components[bit]!.members);

  const lazy = problem.residency === "lazy";
  const devices = usable;
  const swaps = (first: number, second: number, comesRound: boolean): Pick<Cut, "swap" | "calmSwap" | "calmLevel"> => {
    let [own, others] = [0, 0];
    for (const [pool, poolMask] of poolMasks) {
      const [a, b] = [first & poolMask, second & poolMask];
      if (a === 0 || b === 0) continue;
      const devicesOf = ({ id }: PlanNode): number => (pool === undefined ? devices : allocation.devices.get(id)!);
      const isCalm = pool !== undefined && lazy && fitTogether(problem, membersOf(a | b), devicesOf);
      if (isCalm) continue;
      const { swap, swapBack } = turnSwap({ problem, dag }, a, b, comesRound, devicesOf);
      if (pool === undefined) own = swap + swapBack;
      else others = Math.max(others, swap + swapBack);
    }
    const level = own > others && lazy ? calmLevel(first | second) : Number.POSITIVE_INFINITY;
    return { swap: Math.max(own, others), calmSwap: others, calmLevel: level };
  };

  const pace: PlanModel["pace"] = { check: () => {} };
  const sets = new Map<number, PlanSet>();
  const setOf = (mask: number, comesRound: boolean, need = nothing): PlanSet => {
    const key = mask * 8 + (comesRound ? 4 : 0) + (need.turns ? 2 : 0) + (need.beside ? 1 : 0);
    const known = sets.get(key);
    if (known !== undefined) return known;
    const single = isSingle(mask);
    const isFree = !need.turns && !need.beside;
    let cuts: Cut[] | undefined;
    const created: PlanSet = {
      index: sets.size,
      mask,
      leaf: single ? [...bitsOf(mask)][0]! : need.beside ? -1 : (leafOfCycle.get(mask) ?? -1),
      single,
      // Cuts appear when first looked at: a search that stops early never lists those of every subgraph.
      get cuts() {
        cuts ??= downClosedParts(dag, mask, pace.check).flatMap((first) => {
          pace.check();
          const second = mask & ~first;
          const cutsCycle = dag.cycles.some((c) => (c.mask & first) !== 0 && (c.mask & second) !== 0);
          const shape = {
            free: (first & ~freeMask) === 0 || (second & ~freeMask) === 0,
            ...swaps(first, second, comesRound),
            independent: !cutsCycle && !hasEdgeBetween(dag, first, second),
          };
          const turns = !cutsCycle && wishes.mayTakeTurns(first, second) && sharesAll(first, second);
          const beside =
            wishes.mayOwnDevices(first, second) &&
            [...bitsOf(first & freeMask)].every((bit) => (conflicts[bit]! & second) === 0);
          const parts = (ofFirst: Need, ofSecond: Need) => {
            const round = problem.swaps === "round";
            return {
              first: setOf(first, round, ofFirst),
              second: setOf(second, round, ofSecond),
              turnFirst: setOf(first, false, ofFirst),
              turnSecond: setOf(second, false, ofSecond),
            };
          };
          if (isFree) return [{ ...parts(nothing, nothing), turns, beside, ...shape }];
          // What the cut does itself is done; either part does the rest.
          const waysToDo = (rest: Need, does: Pick<Cut, "turns" | "beside">): Cut[] => {
            if (!rest.turns && !rest.beside) return [{ ...parts(nothing, nothing), ...does, ...shape }];
            return [
              ...(isSingle(first) ? [] : [{ ...parts(rest, nothing), ...does, ...shape }]),
              ...(isSingle(second) ? [] : [{ ...parts(nothing, rest), ...does, ...shape }]),
            ];
          };
          return [
            ...(turns ? waysToDo({ ...need, turns: false }, { turns: true, beside: false }) : []),
            ...(beside ? waysToDo({ ...need, beside: false }, { turns: false, beside: true }) : []),
          ];
        });
        return cuts;
      },
    };
    sets.set(key, created);
    return created;
  };
  const set = (mask: number): PlanSet => setOf(mask, problem.swaps === "round");
  const everything = 2 ** dag.components.length - 1;
  const all = set(everything);
  const mixed = (): PlanSet | undefined =>
    isSingle(everything) ? undefined : setOf(everything, problem.swaps === "round", { turns: true, beside: true });
  const kway = problem.pipeline === "kway" && objective === "step";
  const grids = new Map<string, Grid>();
  const grid = (shape?: GridShape): Grid => {
    const key = shape === undefined ? "" : `${shape.dense} ${shape.ratio}`;
    const known = grids.get(key);
    if (known !== undefined) return known;
    const made = new Grid(shape === undefined ? Int32Array.of(levels) : makeGrid(levels, shape));
    grids.set(key, made);
    return made;
  };
  const size = { step, levels, items, chunkings, kway };
  return {
    problem,
    objective,
    dag,
    leaves,
    freeMask,
    allocation,
    wishes,
    ...size,
    leafSeconds,
    set,
    all,
    mixed,
    grid,
    pace,
  };
}

const isSingle = (mask: number): boolean => (mask & (mask - 1)) === 0;

/** Which operations a search may use; `hybrid` stands for all of them. */
export type Operations = { readonly temporal: boolean; readonly spatial: boolean };

export const operationsOf = (mode: PlanMode): Operations => ({
  temporal: mode !== "spatial",
  spatial: mode !== "temporal",
});

/** The component that a set may run as, or -1: members of a cycle that runs as one take turns. */
export const leafOf = ({ leaf, single }: PlanSet, { temporal }: Operations): number => (single || temporal ? leaf : -1);

/** Of a pipeline of two stages over `count` chunks, or of two parts side by side where `count` is 0. */
export function spatialSeconds(objective: Objective, first: number, second: number, count: number): number {
  if (count === 0) return Math.max(first, second);
  if (objective === "busy") return count * Math.max(first, second);
  return count === 1 ? first + second : first + second + (count - 1) * Math.max(first, second);
}
