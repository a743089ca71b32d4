import { overlapped } from "./evaluate.ts";
import { FullLeaves } from "./full-leaves.ts";
import { type Cut, leafOf, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import { nodeSchedule } from "./node-schedule.ts";
import type { Schedule } from "./problem.ts";

export type Found = { readonly time: number; readonly schedule: Schedule | null };

/** Seconds from beginning to end, and of the busiest devices, which count where steps overlap. */
type Seconds = { readonly step: number; readonly busy: number };
type Way = Seconds & { readonly schedule: Schedule };

/** The beginning of a flat pipeline: `sum` and `max` of its stages' seconds for one chunk, and the busiest devices'. */
type Stages = {
  readonly sum: number;
  readonly max: number;
  readonly busy: number;
  readonly stages: readonly Schedule[];
};

export type NaiveOptions = {
  /** only schedules that leave none of the problem's own devices idle (`useAll`) */
  readonly full?: boolean;
  /** only what takes less is looked for */
  readonly limit?: number;
  /** called for each candidate; what it throws ends the search */
  readonly spend?: (() => void) | undefined;
};

/**
 * RLinf Alg. 1 as written: every cut, every split, every chunk, memoised. Three deviations, all repairs: the memo key
 * includes the items (the paper's table would hand a chunk's time to a batch), cuts are all down-closed parts, and where
 * steps overlap a state keeps every way that no other beats both from beginning to end and in its busiest devices: which
 * is best is known of the whole alone.
 * About quadratic in devices; it exists to check the fast search and to be read.
 */
export function solveNaive(
  model: PlanModel,
  operations: Operations,
  { full: isFull = false, limit = Number.POSITIVE_INFINITY, spend }: NaiveOptions = {},
): Found & { states: number; candidates: number } {
  const memo = new Map<number, readonly Way[]>();
  const frontiers = new Map<number, readonly Stages[]>();
  let candidates = 0;
  const { kway, problem } = model;
  const overlaps = problem.maxStaleness > 0;
  const timeOf = ({ step, busy }: Seconds): number => overlapped(problem, step, busy);

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
  const part = (set: PlanSet, level: number, itemsIndex: number, full: boolean): readonly Way[] =>
    find(set, level, itemsIndex, full && usesDevices(set));

  const find = (set: PlanSet, level: number, itemsIndex: number, full: boolean): readonly Way[] => {
    const key = keyOf(set, level, itemsIndex, full);
    const known = memo.get(key);
    if (known !== undefined) return known;
    const size = { devices: level * model.step, items: model.items[itemsIndex]! };
    let ways: Way[] = [];
    const offer = (step: number, busy: number, schedule: () => Schedule): void => {
      candidates++;
      spend?.();
      // What is part of a schedule takes no longer than it.
      if (!(overlapped(problem, step, busy) < limit)) return;
      if (!overlaps) {
        if (!(ways[0] !== undefined && ways[0].step <= step)) ways = [{ step, busy, schedule: schedule() }];
        return;
      }
      const seconds = { step, busy };
      if (ways.some((way) => isAsGood(way, seconds))) return;
      ways = [...ways.filter((way) => !isAsGood(seconds, way)), { step, busy, schedule: schedule() }];
    };
    const leaf = leafOf(set, operations);
    if (leaf >= 0 && (!full || fullLeaves.has(leaf, level, itemsIndex))) {
      const time = model.leafSeconds(leaf, itemsIndex)[level]!;
      offer(time, time, () => nodeSchedule(model, leaf, level, itemsIndex));
    }
    for (const cut of set.cuts) {
      const { first, second, independent } = cut;
      if (operations.temporal && cut.turns) {
        const swap = swapAt(cut, level);
        // One that uses all is enough.
        for (const [ofFirst, ofSecond] of full
          ? ([
              [true, false],
              [false, true],
            ] as const)
          : ([[false, false]] as const)) {
          if ((ofFirst && !usesDevices(cut.turnFirst)) || (ofSecond && !usesDevices(cut.turnSecond))) continue;
          const others = find(cut.turnSecond, level, itemsIndex, ofSecond);
          for (const a of others.length > 0 ? find(cut.turnFirst, level, itemsIndex, ofFirst) : []) {
            for (const b of others)
              offer(a.step + b.step + swap, a.busy + b.busy + swap, () => ({
                op: "temporal",
                ...size,
                first: a.schedule,
                second: b.schedule,
              }));
          }
        }
      }
      if (!operations.spatial || !cut.beside) continue;
      for (const [left, right] of sharesOf(cut, level)) {
        for (const { itemsIndex: chunkIndex, items: chunk, count } of model.chunkings[itemsIndex]!) {
          const pipeline = { op: "pipeline" as const, ...size, chunk };
          for (const a of part(first, left, chunkIndex, full)) {
            for (const b of part(second, right, chunkIndex, full))
              offer(besideSteps(a, b, count), besideBusy(a, b, count), () => ({
                ...pipeline,
                first: a.schedule,
                second: b.schedule,
              }));
            if (!kway) continue;
            for (const rest of flat(second, right, chunkIndex, full)) {
              if (rest.stages.length === 1) continue;
              const step = a.step + rest.sum + (count - 1) * Math.max(a.step, rest.max);
              offer(step, count * Math.max(a.busy, rest.busy), () => ({
                ...pipeline,
                stages: [a.schedule, ...rest.stages],
              }));
            }
          }
        }
        if (!problem.parallelIndependent || !independent) continue;
        for (const a of part(first, left, itemsIndex, full)) {
          for (const b of part(second, right, itemsIndex, full))
            offer(besideSteps(a, b, 0), besideBusy(a, b, 0), () => ({
              op: "parallel",
              ...size,
              first: a.schedule,
              second: b.schedule,
            }));
        }
      }
    }
    memo.set(key, ways);
    return ways;
  };

  /** Every way to run `set` as a row of stages that no other way beats in sum, max and busiest devices. */
  const flat = (set: PlanSet, level: number, itemsIndex: number, full: boolean): readonly Stages[] => {
    const key = keyOf(set, level, itemsIndex, full);
    const known = frontiers.get(key);
    if (known !== undefined) return known;
    const all = part(set, level, itemsIndex, full).map(
      ({ step, busy, schedule }): Stages => ({ sum: step, max: step, busy, stages: [schedule] }),
    );
    for (const cut of set.cuts) {
      if (!cut.beside) continue;
      for (const [left, right] of sharesOf(cut, level)) {
        for (const a of part(cut.first, left, itemsIndex, full)) {
          for (const rest of flat(cut.second, right, itemsIndex, full)) {
            spend?.();
            all.push({
              sum: a.step + rest.sum,
              max: Math.max(a.step, rest.max),
              busy: Math.max(a.busy, rest.busy),
              stages: [a.schedule, ...rest.stages],
            });
          }
        }
      }
    }
    all.sort((a, b) => a.sum - b.sum || a.max - b.max || a.busy - b.busy);
    const frontier: Stages[] = [];
    const isBeaten = ({ max, busy }: Stages): boolean =>
      frontier.some((other) => other.max <= max && (!overlaps || other.busy <= busy));
    for (const entry of all) if (!isBeaten(entry)) frontier.push(entry);
    frontiers.set(key, frontier);
    return frontier;
  };

  const found = part(model.all, model.levels, 0, isFull);
  const nothing: Found = { time: Number.POSITIVE_INFINITY, schedule: null };
  const best = found.reduce<Found>((least, way) => {
    const time = timeOf(way);
    return time < least.time ? { time, schedule: way.schedule } : least;
  }, nothing);
  return { ...best, states: memo.size, candidates };

  function isAsGood(a: Seconds, b: Seconds): boolean {
    return a.step <= b.step && a.busy <= b.busy;
  }
}

const besideSteps = (a: Seconds, b: Seconds, count: number): number => spatialSeconds("step", a.step, b.step, count);
const besideBusy = (a: Seconds, b: Seconds, count: number): number => spatialSeconds("busy", a.busy, b.busy, count);
