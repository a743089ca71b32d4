/** The best splits for what a schedule does: who takes turns and who pipelines, in what chunks, stays as it is. */
import { evaluateSchedule } from "./evaluate.ts";
import { type PlanModel, type PlanSet, swapAt } from "./model.ts";
import { nodeSchedule } from "./node-schedule.ts";
import type { Schedule } from "./problem.ts";

/** A part of the schedule on every level of devices; neither `sum` nor `max` of stages grows with them. */
type Part = {
  readonly seconds: Float64Array;
  /** of a row of stages */
  readonly max: Float64Array;
  at(level: number): readonly Schedule[];
};

/**
 * Exact for schedules of parts in pairs. Rows of more stages are split from their end, which is near the best. Gives the
 * schedule back where components are in pools or in a cycle that is split, for their devices are no levels.
 */
export function refineSplits(model: PlanModel, schedule: Schedule): Schedule {
  if (model.freeMask !== 0 || model.dag.cycles.length > 0) return schedule;
  // The slack keeps what takes just as long.
  const limit = (evaluateSchedule(model, schedule).step ?? Number.POSITIVE_INFINITY) * (1 + 1e-9);
  return partOf(model, schedule, model.all, limit).at(model.levels)[0]!;
}

/** Levels on which a part takes longer than what is to be refined takes as a whole are left out (see `bounds.ts`). */
function partOf(model: PlanModel, schedule: Schedule, set: PlanSet, limit: number): Part {
  const itemsIndex = model.items.indexOf(schedule.items);
  const size = (level: number) => ({ devices: level * model.step, items: schedule.items });
  if (schedule.op === "node") {
    const seconds = model.leafSeconds(set.leaf, itemsIndex);
    return { seconds, max: seconds, at: (level) => [nodeSchedule(model, set.leaf, level, itemsIndex)] };
  }
  if (schedule.op === "temporal") {
    const cut = cutOf(model, set, schedule.first);
    const a = partOf(model, schedule.first, cut.turnFirst, limit);
    const b = partOf(model, schedule.second, cut.turnSecond, limit);
    const seconds = a.seconds.map((value, level) => value + b.seconds[level]! + swapAt(cut, level));
    const at = (level: number): Schedule[] => {
      return [{ op: "temporal", ...size(level), first: a.at(level)[0]!, second: b.at(level)[0]! }];
    };
    return { seconds, max: seconds, at };
  }
  const count = schedule.op === "parallel" ? 0 : schedule.items / schedule.chunk;
  const stages = "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
  const row = rowOf(model, stages, set, count, limit);
  const seconds = row.seconds.map((sum, level) => rowSeconds(sum, row.max[level]!, count));
  const at = (level: number): Schedule[] => {
    const parts = row.at(level);
    const [first, second] = [parts[0]!, parts[1]!];
    if (schedule.op === "parallel") return [{ op: "parallel", ...size(level), first, second }];
    const pipeline = { op: "pipeline" as const, ...size(level), chunk: schedule.chunk };
    return [parts.length > 2 ? { ...pipeline, stages: parts } : { ...pipeline, first, second }];
  };
  return { seconds, max: seconds, at };
}

/** Stages side by side: `seconds` is their sum. */
function rowOf(model: PlanModel, stages: readonly Schedule[], set: PlanSet, count: number, limit: number): Part {
  const [head, ...others] = stages as [Schedule, ...Schedule[]];
  if (others.length === 0) return partOf(model, head, set, limit);
  const cut = cutOf(model, set, head);
  const a = partOf(model, head, cut.first, limit);
  const b = rowOf(model, others, cut.second, count, limit);
  const { levels } = model;
  const shares = new Int32Array(levels + 1);
  const sum = new Float64Array(levels + 1).fill(Number.POSITIVE_INFINITY);
  const max = new Float64Array(levels + 1).fill(Number.POSITIVE_INFINITY);
  const weight = Math.max(1, count);
  const limitOfRow = (limit * weight * head.items) / model.items[0]!;
  const [ofFirst, ofSlowest, ofRest] = [a.seconds, b.max, b.seconds];
  let crossing = levels - 1;
  for (let level = levels; level >= 2; level--) {
    // From where the first becomes the faster one, either side only gets slower; its part alone ends the walk.
    crossing = Math.min(crossing, level - 1);
    while (crossing > 1 && ofFirst[crossing - 1]! <= ofSlowest[level - crossing + 1]!) crossing--;
    let best = Number.POSITIVE_INFINITY;
    let bestShare = 0;
    for (let share = crossing; share < level; share++) {
      const rest = level - share;
      const slowest = ofSlowest[rest]!;
      if (bestShare > 0 && weight * slowest >= best) break;
      const first = ofFirst[share]!;
      const total = rowSeconds(first + ofRest[rest]!, Math.max(first, slowest), count);
      if (total < best) {
        best = total;
        bestShare = share;
      }
    }
    for (let share = crossing - 1; share >= 1; share--) {
      const first = ofFirst[share]!;
      if (bestShare > 0 && weight * first >= best) break;
      const rest = level - share;
      const slowest = ofSlowest[rest]!;
      const total = rowSeconds(first + ofRest[rest]!, Math.max(first, slowest), count);
      if (total < best) {
        best = total;
        bestShare = share;
      }
    }
    if (bestShare === 0 || best > limitOfRow) break;
    shares[level] = bestShare;
    sum[level] = ofFirst[bestShare]! + ofRest[level - bestShare]!;
    max[level] = Math.max(ofFirst[bestShare]!, ofSlowest[level - bestShare]!);
  }
  return { seconds: sum, max, at: (level) => [...a.at(shares[level]!), ...b.at(level - shares[level]!)] };
}

const rowSeconds = (sum: number, max: number, count: number): number =>
  count === 0 ? max : count === 1 ? sum : sum + (count - 1) * max;

function cutOf(model: PlanModel, set: PlanSet, first: Schedule) {
  const mask = maskOf(model, first);
  return set.cuts.find((cut) => cut.first.mask === mask)!;
}

function maskOf(model: PlanModel, schedule: Schedule): number {
  if (schedule.op === "node") return 1 << model.leaves.findIndex(({ id }) => id === schedule.node);
  const parts = "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
  return parts.reduce((all, part) => all | maskOf(model, part), 0);
}
