import { type Choices, isUnitConvex } from "./choices.ts";
import { arrangeOnHulls, UnitConvexArrangement } from "./marginal-gain.ts";
import { PrefixTable } from "./prefix-table.ts";

export type Arranged = {
  /** chosen index of each task */
  readonly index: Int32Array;
  readonly totalSeconds: number;
  readonly method: "greedy" | "dp" | "bounded-dp";
  /** steps of the greedy plus cells of the table */
  readonly work: number;
};

export function minimumUnits(tasks: readonly Choices[]): number {
  let sum = 0;
  for (const task of tasks) sum += task.units[0]!;
  return sum;
}

/**
 * The exact least sum of seconds with at most `free` units; undefined when the minimums do not fit.
 *
 * Convex choices that step by one unit: marginal gain. Anything else: marginal gain per unit on the convex hulls gives
 * a solution and a lower bound; a choice whose reduced cost exceeds their gap cannot be part of a better solution, and
 * the table runs only over what is left. A caller that knows whether all are `isUnitConvex` says so.
 */
export function arrangePool(
  tasks: readonly Choices[],
  free: number,
  unitConvex = tasks.every(isUnitConvex),
): Arranged | undefined {
  if (minimumUnits(tasks) > free) return undefined;
  if (unitConvex) {
    const greedy = new UnitConvexArrangement(tasks, free);
    const index = greedy.indices();
    return { index, totalSeconds: sumOf(tasks, index), method: "greedy", work: tasks.length + free };
  }
  const { index, lowerBound, price, steps } = arrangeOnHulls(tasks, free);
  const totalSeconds = sumOf(tasks, index);
  const gap = totalSeconds - lowerBound;
  if (gap <= 1e-12 * Math.abs(totalSeconds)) return { index, totalSeconds, method: "greedy", work: steps };
  const allowance = gap + 1e-9 * Math.max(1e-3, gap, 1e-3 * totalSeconds);
  const open: Choices[] = [];
  const openTask: number[] = [];
  const kept: number[][] = [];
  let spare = free;
  for (let i = 0; i < tasks.length; i++) {
    const { id, units, seconds } = tasks[i]!;
    let least = Number.POSITIVE_INFINITY;
    for (let c = 0; c < units.length; c++) least = Math.min(least, seconds[c]! + price * units[c]!);
    const keep: number[] = [];
    for (let c = 0; c < units.length; c++) if (seconds[c]! + price * units[c]! - least <= allowance) keep.push(c);
    if (keep.length === 1) {
      index[i] = keep[0]!;
      spare -= units[keep[0]!]!;
      continue;
    }
    open.push({ id, units: keep.map((c) => units[c]!), seconds: keep.map((c) => seconds[c]!) });
    openTask.push(i);
    kept.push(keep);
  }
  const table = new PrefixTable(open, spare, true);
  table.indices(open.length).forEach((choice, o) => {
    index[openTask[o]!] = kept[o]![choice]!;
  });
  return { index, totalSeconds: sumOf(tasks, index), method: "bounded-dp", work: steps + table.work };
}

/** The same answer from the whole table (ARL-Tangram Algorithm 3, repaired). */
export function arrangePoolByTable(tasks: readonly Choices[], free: number): Arranged | undefined {
  if (minimumUnits(tasks) > free) return undefined;
  const table = new PrefixTable(tasks, free, true);
  const index = table.indices(tasks.length);
  return { index, totalSeconds: sumOf(tasks, index), method: "dp", work: table.work };
}

export function sumOf(tasks: readonly Choices[], index: Int32Array): number {
  let sum = 0;
  for (let i = 0; i < tasks.length; i++) sum += tasks[i]!.seconds[index[i]!]!;
  return sum;
}
