/** What would help: the seconds that a few more devices for one part of a schedule would save, all else left as it is. */
import { mostDevices } from "../plan/component-time.ts";
import { evaluateSchedule } from "../plan/evaluate.ts";
import { compileModel } from "../plan/model.ts";
import type { PlanProblem, Schedule } from "../plan/problem.ts";
import { ownsDevices, partsOf } from "./schedule-placement.ts";

export type MoreDevices = {
  /** that have the devices, in turn where they are several */
  readonly components: readonly string[];
  readonly devices: number;
  readonly savedSeconds: number;
  /** of these components the ranks that they may have are all there, so that no device helps them */
  readonly atMostRanks: readonly string[];
};

/** Devices that are tried in addition, relative to those there are. */
const share = 1 / 8;

/**
 * One entry a part that owns devices, the most helpful first. A part that nothing would help has 0 saved seconds.
 * `costs` is the same problem on a larger cluster, so that it knows what more devices cost.
 */
export function moreDevices(costs: PlanProblem, real: PlanProblem, schedule: Schedule): MoreDevices[] {
  const problem = { ...costs, devices: real.devices, pools: real.pools };
  const before = evaluateSchedule(compileModel(problem), schedule).time;
  if (before === null) return [];
  const nodeOf = new Map(problem.nodes.map((node) => [node.id, node]));
  return ownersOf(schedule)
    .map((path): MoreDevices => {
      const components = membersOf(at(schedule, path));
      const pool = nodeOf.get(components[0]!)!.pool;
      const unit = Math.max(...components.map((id) => nodeOf.get(id)!.unit));
      const devices = Math.ceil(Math.max(1, at(schedule, path).devices * share) / unit) * unit;
      const larger: PlanProblem =
        pool === undefined
          ? { ...problem, splits: "all", devices: problem.devices + devices }
          : { ...problem, pools: { ...problem.pools, [pool]: grown(problem.pools[pool]!, devices) } };
      const wider = widen(schedule, path, devices, (id) => nodeOf.get(id)!.pool === pool);
      const after = evaluateSchedule(compileModel(larger), wider).time ?? before;
      const own = at(schedule, path).devices;
      const atMostRanks = components.filter((id) => mostDevices(nodeOf.get(id)!) <= own);
      // Where none of them can use more, it is others that gain, which are told by themselves.
      const isFull = atMostRanks.length === components.length;
      return { components, devices, savedSeconds: isFull ? 0 : Math.max(0, before - after), atMostRanks };
    })
    .sort((a, b) => b.savedSeconds / b.devices - a.savedSeconds / a.devices);
}

const grown = <P extends { devices: number }>(pool: P, devices: number): P => ({
  ...pool,
  devices: pool.devices + devices,
});

const at = (schedule: Schedule, path: readonly number[]): Schedule =>
  path.reduce((part, index) => partsOf(part)[index]!, schedule);

const membersOf = (schedule: Schedule): string[] =>
  schedule.op === "node" ? schedule.node.split("+") : partsOf(schedule).flatMap(membersOf);

/** Paths of the smallest parts that own devices: those whose own parts all take turns. */
function ownersOf(schedule: Schedule, path: readonly number[] = []): (readonly number[])[] {
  const splits = (part: Schedule): boolean => ownsDevices(part) || partsOf(part).some(splits);
  if (!splits(schedule)) return [path];
  return partsOf(schedule).flatMap((part, i) => {
    // A part that takes turns with one that is split has the same devices; what helps there helps it too.
    if (!ownsDevices(schedule) && !splits(part)) return [];
    return ownersOf(part, [...path, i]);
  });
}

/** Everything on the way has more devices, and so has whatever takes turns with it. */
function widen(
  schedule: Schedule,
  path: readonly number[] | undefined,
  devices: number,
  inPool: (id: string) => boolean,
): Schedule {
  if (schedule.op === "node") {
    return inPool(schedule.node.split("+")[0]!) ? { ...schedule, devices: schedule.devices + devices } : schedule;
  }
  const inner = (part: Schedule, i: number): Schedule => {
    if (path !== undefined && path.length > 0 && path[0] === i) return widen(part, path.slice(1), devices, inPool);
    if (path === undefined || path.length === 0 || !ownsDevices(schedule))
      return ownsDevices(part) ? { ...part, devices: part.devices + devices } : widen(part, undefined, devices, inPool);
    return part;
  };
  const size = schedule.devices + devices;
  if ("stages" in schedule) return { ...schedule, devices: size, stages: schedule.stages.map(inner) };
  return { ...schedule, devices: size, first: inner(schedule.first, 0), second: inner(schedule.second, 1) };
}
