import { FullLeaves } from "./full-leaves.ts";
import { type Cut, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import { nodeSchedule } from "./node-schedule.ts";
import type { Schedule } from "./problem.ts";

export type Found = { readonly time: number; readonly schedule: Schedule | null };

/** The beginning of a flat pipeline: `sum` and `max` of its stages' seconds for one chunk. */
type Stages = { readonly sum: number; readonly max: number; readonly stages: readonly Schedule[] };

/**
 * RLinf Alg. 1 as written: every cut, every split, every chunk, memoised. Two deviations, both repairs: the memo key
 * includes the items (the paper's table would hand a chunk's time to a batch), and cuts are all down-closed parts.
 * About quadratic in devices; it exists to check the fast search and to be read.
 */
export function solveNaive(
  model: PlanModel,
  operations: Operations,
  isFull = false,
): Found & { states: number; candidates: number } {
  const memo = new Map<number, Found>();
  const frontiers = new Map<number, readonly Stages[]>();
  let candidates = 0;
  const { kway, objective } = model;

  const fullLeaves = new FullLeaves(model);
  const usesDevices = ({ mask }: PlanSet): boolean => (mask & ~model.freeMask) !== 0;

  const keyOf = (set: PlanSet, level: number, itemsIndex: number, full: boolean): number =>
    ((set.index * (model.levels + 1) + level) * model.items.length + itemsIndex) * 2 + (full ? 1 : 0);

  /** Levels of the two parts, in every way to split. */
  function* sharesOf(cut: Cut, level: number): Generator<readonly [number, number]> {
    if (cut.free) yield [level, level];
    else for (let share = 1; share < level; share++) yield [share, level - share];
  }

  /** A part that owns devices: of a schedule of full use, it uses all of them. */
  const part = (set: PlanSet, level: number, itemsIndex: number, full: boolean): Found =>
    find(set, level, itemsIndex, full && usesDevices(set));

  /** `full`: only schedules that leave none of the problem's own devices idle (`useAll`). */
  const find = (set: PlanSet, level: number, itemsIndex: number, full: boolean): Found => {
    const key = keyOf(set, level, itemsIndex, full);
    const known = memo.get(key);
    if (known !== undefined) return known;
    const size = { devices: level * model.step, items: model.items[itemsIndex]! };
    let best: Found = { time: Number.POSITIVE_INFINITY, schedule: null };
    const offer = (time: number, schedule: () => Schedule): void => {
      candidates++;
      if (time < best.time) best = { time, schedule: schedule() };
    };
    if (set.leaf >= 0 && (!full || fullLeaves.has(set.leaf, level, itemsIndex))) {
      const time = model.leafSeconds(set.leaf, itemsIndex)[level]!;
      offer(time, () => nodeSchedule(model, set.leaf, level, itemsIndex));
    }
    for (const cut of set.cuts) {
      const { first, second, independent } = cut;
      if (operations.temporal && cut.turns) {
        // One that uses all is enough.
        for (const [ofFirst, ofSecond] of full
          ? ([
              [true, false],
              [false, true],
            ] as const)
          : ([[false, false]] as const)) {
          if ((ofFirst && !usesDevices(cut.turnFirst)) || (ofSecond && !usesDevices(cut.turnSecond))) continue;
          const a = find(cut.turnFirst, level, itemsIndex, ofFirst);
          const b = find(cut.turnSecond, level, itemsIndex, ofSecond);
          const time = a.time + b.time + swapAt(cut, level);
          offer(time, () => ({ op: "temporal", ...size, first: a.schedule!, second: b.schedule! }));
        }
      }
      if (!operations.spatial || !cut.beside) continue;
      for (const [left, right] of sharesOf(cut, level)) {
        for (const chunking of model.chunkings[itemsIndex]!) {
          const a = part(first, left, chunking.itemsIndex, full);
          const b = part(second, right, chunking.itemsIndex, full);
          const pipeline = { op: "pipeline" as const, ...size, chunk: chunking.items };
          offer(spatialSeconds(objective, a.time, b.time, chunking.count), () => ({
            ...pipeline,
            first: a.schedule!,
            second: b.schedule!,
          }));
          if (!kway) continue;
          for (const rest of flat(second, right, chunking.itemsIndex, full)) {
            const stages = [a.schedule!, ...rest.stages];
            const time = a.time + rest.sum + (chunking.count - 1) * Math.max(a.time, rest.max);
            if (stages.length > 2) offer(time, () => ({ ...pipeline, stages }));
          }
        }
        if (!model.problem.parallelIndependent || !independent) continue;
        const a = part(first, left, itemsIndex, full);
        const b = part(second, right, itemsIndex, full);
        const time = spatialSeconds(objective, a.time, b.time, 0);
        offer(time, () => ({ op: "parallel", ...size, first: a.schedule!, second: b.schedule! }));
      }
    }
    memo.set(key, best);
    return best;
  };

  /** Every way to run `set` as a row of stages that no other way beats in both sum and max. */
  const flat = (set: PlanSet, level: number, itemsIndex: number, full: boolean): readonly Stages[] => {
    const key = keyOf(set, level, itemsIndex, full);
    const known = frontiers.get(key);
    if (known !== undefined) return known;
    const whole = part(set, level, itemsIndex, full);
    const all: Stages[] =
      whole.schedule === null ? [] : [{ sum: whole.time, max: whole.time, stages: [whole.schedule] }];
    for (const cut of set.cuts) {
      if (!cut.beside) continue;
      for (const [left, right] of sharesOf(cut, level)) {
        const a = part(cut.first, left, itemsIndex, full);
        if (a.schedule === null) continue;
        for (const rest of flat(cut.second, right, itemsIndex, full)) {
          all.push({ sum: a.time + rest.sum, max: Math.max(a.time, rest.max), stages: [a.schedule, ...rest.stages] });
        }
      }
    }
    all.sort((a, b) => a.sum - b.sum || a.max - b.max);
    const frontier: Stages[] = [];
    for (const entry of all) if (frontier.length === 0 || entry.max < frontier.at(-1)!.max) frontier.push(entry);
    frontiers.set(key, frontier);
    return frontier;
  };

  const found = part(model.all, model.levels, 0, isFull);
  return { ...found, states: memo.size, candidates };
}
