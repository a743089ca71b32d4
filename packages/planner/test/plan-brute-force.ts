import { evaluateSchedule, type PlanModel, type Schedule } from "../src/index.ts";
import { modeAmong } from "../src/plan/schedule-mode.ts";

/**
 * Writes out every schedule there is, legal or not, and keeps the best legal one by `evaluateSchedule`: of any kind, and
 * of each mode. Shares no search code with the planners. For three components on four devices.
 */
export function bruteForce(model: PlanModel): Map<string, number> {
  return bestOf(model, allSchedules(model));
}

/** The best legal one of any kind, and of each mode; `problem`: with the modes that are asked for. */
export function bestOf(model: PlanModel, schedules: Iterable<Schedule>, problem = model.problem): Map<string, number> {
  const best = new Map<string, number>();
  for (const schedule of schedules) {
    const { time } = evaluateSchedule(model, schedule);
    if (time === null) continue;
    for (const kind of ["any", modeAmong(problem, schedule)])
      best.set(kind, Math.min(best.get(kind) ?? Number.POSITIVE_INFINITY, time));
  }
  return best;
}

/** Legal or not. */
export function* allSchedules({ problem, dag }: PlanModel): Generator<Schedule> {
  const poolOf = new Map(problem.nodes.map((node) => [node.id, node.pool]));
  const space: Space = {
    devicesOf: (id) => {
      const pool = poolOf.get(id);
      return pool === undefined ? undefined : problem.pools[pool]!.devices;
    },
    cycles: dag.cycles.flatMap(({ component }) =>
      component ? [{ id: component.id, members: component.members.map((m) => m.id) }] : [],
    ),
  };
  const ids = dag.components.map((component) => component.id);
  yield* schedules(space, ids, problem.devices - problem.reserved, problem.batch);
}

/** Devices of every node, by pool and number: parts that take turns begin at the same device, others one after the other. */
export function deviceSetsOf({ problem }: PlanModel, schedule: Schedule): Map<string, ReadonlySet<string>> {
  const poolOf = new Map(problem.nodes.map((node) => [node.id, node.pool]));
  const pools = [undefined, ...Object.keys(problem.pools)];
  type At = ReadonlyMap<string | undefined, number>;
  const partsOf = (part: Schedule): readonly Schedule[] =>
    part.op === "node" ? [] : "stages" in part ? part.stages : [part.first, part.second];
  const widthIn = (part: Schedule, pool: string | undefined): number => {
    if (part.op === "node") return poolOf.get(part.node.split("+")[0]!) === pool ? part.devices : 0;
    const widths = partsOf(part).map((each) => widthIn(each, pool));
    return part.op === "temporal" ? Math.max(...widths) : widths.reduce((a, b) => a + b, 0);
  };
  const sets = new Map<string, ReadonlySet<string>>();
  const lay = (part: Schedule, at: At): void => {
    if (part.op === "node") {
      for (const id of part.node.split("+")) {
        const pool = poolOf.get(id);
        sets.set(id, new Set(Array.from({ length: part.devices }, (_, i) => `${pool}:${at.get(pool)! + i}`)));
      }
      return;
    }
    let here = at;
    for (const each of partsOf(part)) {
      lay(each, here);
      if (part.op === "temporal") continue;
      const before = here;
      here = new Map(pools.map((pool) => [pool, before.get(pool)! + widthIn(each, pool)]));
    }
  };
  lay(schedule, new Map(pools.map((pool) => [pool, 0])));
  return sets;
}

type Space = {
  /** of the pool that the first of a component's members is in, if any */
  readonly devicesOf: (id: string) => number | undefined;
  readonly cycles: readonly { readonly id: string; readonly members: readonly string[] }[];
};

function* nodes({ devicesOf }: Space, id: string, devices: number, items: number): Generator<Schedule> {
  const inPool = devicesOf(id.split("+")[0]!);
  if (inPool === undefined) yield { op: "node", node: id, devices, items };
  else for (let count = 1; count <= inPool; count++) yield { op: "node", node: id, devices: count, items };
}

/** How many of the devices each of two parts gets; all of them where one part only uses a pool. */
function sharesOf(space: Space, left: readonly string[], right: readonly string[], devices: number) {
  const isFree = (ids: readonly string[]): boolean =>
    ids.every((id) => space.devicesOf(id.split("+")[0]!) !== undefined);
  if (isFree(left) || isFree(right)) return [[devices, devices] as const];
  return Array.from({ length: devices - 1 }, (_, i) => [i + 1, devices - i - 1] as const);
}

function* schedules(space: Space, ids: readonly string[], devices: number, items: number): Generator<Schedule> {
  if (ids.length === 1) {
    yield* nodes(space, ids[0]!, devices, items);
    return;
  }
  for (const { id, members } of space.cycles) {
    if (members.length === ids.length && members.every((member) => ids.includes(member)))
      yield* nodes(space, id, devices, items);
  }
  for (const [left, right] of partitions(ids)) {
    for (const first of schedules(space, left, devices, items)) {
      for (const second of schedules(space, right, devices, items))
        yield { op: "temporal", devices, items, first, second };
    }
    for (const [own, rest] of sharesOf(space, left, right, devices)) {
      for (let chunk = 1; chunk <= items; chunk++) {
        for (const first of schedules(space, left, own, chunk)) {
          for (const second of schedules(space, right, rest, chunk)) {
            yield { op: "pipeline", devices, items, chunk, first, second };
            if (chunk === items) yield { op: "parallel", devices, items, first, second };
          }
        }
      }
    }
  }
  if (ids.length !== 3) return;
  for (const order of permutations(ids)) {
    const [a, b, c] = order as [string, string, string];
    for (let chunk = 1; chunk <= items; chunk++) {
      for (const [own, rest] of sharesOf(space, [a], [b, c], devices)) {
        for (const [second, third] of sharesOf(space, [b], [c], rest)) {
          for (const first of nodes(space, a, own, chunk)) {
            for (const middle of nodes(space, b, second, chunk)) {
              for (const last of nodes(space, c, third, chunk))
                yield { op: "pipeline", devices, items, chunk, stages: [first, middle, last] };
            }
          }
        }
      }
    }
  }
}

function* partitions(ids: readonly string[]): Generator<[string[], string[]]> {
  for (let mask = 1; mask < 2 ** ids.length - 1; mask++) {
    yield [ids.filter((_, i) => (mask >> i) & 1), ids.filter((_, i) => !((mask >> i) & 1))];
  }
}

function permutations(ids: readonly string[]): string[][] {
  if (ids.length <= 1) return [[...ids]];
  return ids.flatMap((id) => permutations(ids.filter((other) => other !== id)).map((rest) => [id, ...rest]));
}
