import { readProblem, type SolveOptions } from "@treadle/contracts";
import { leastSeconds } from "./component-time.ts";
import { bitsOf, hasEdgeBetween } from "./graph.ts";
import { chunkAllowed, compileModel, type PlanModel } from "./model.ts";
import { idleIn, usableDevices } from "./plan-wishes.ts";
import { type EvalAnswer, EvalProblem, type PlanNode, type PlanProblem, type Schedule } from "./problem.ts";
import { modeAmong, modeOf } from "./schedule-mode.ts";
import { fitTogether, limitsIn, turnSwap } from "./turn-swap.ts";

class Illegal extends Error {
  readonly path: string;
  constructor(path: string, problem: string) {
    super(problem);
    this.path = path;
  }
}

type Illegality = { readonly path: string; readonly problem: string };

/** `step` seconds of one step alone, `busy` those that the busiest devices work in it, `time` what the problem minimises. */
export type Evaluation =
  | { readonly time: number; readonly step: number; readonly busy: number; readonly illegal: null }
  | { readonly time: null; readonly step: null; readonly busy: null; readonly illegal: Illegality };

/** Seconds of a schedule by the definition, or what is not allowed in it. Does not search. */
export function evaluateSchedule(model: PlanModel, schedule: Schedule): Evaluation {
  const { cost: whole, illegal } = tryCost(model, schedule);
  if (whole === null) return { time: null, step: null, busy: null, illegal };
  const { step, busy } = whole;
  return { time: overlapped(model.problem, step, busy), step, busy, illegal: null };
}

/** `costSchedule` of a schedule that may not be legal. */
export function tryCost(
  model: PlanModel,
  schedule: Schedule,
): { readonly cost: Cost; readonly illegal: null } | { readonly cost: null; readonly illegal: Illegality } {
  try {
    return { cost: costSchedule(model, schedule), illegal: null };
  } catch (error) {
    if (!(error instanceof Illegal)) throw error;
    return { cost: null, illegal: { path: error.path, problem: error.message } };
  }
}

/** The same with its parts, of a schedule that is legal. */
export function costSchedule(model: PlanModel, schedule: Schedule): Cost {
  const { problem } = model;
  requireItems("schedule", schedule, problem.batch);
  const whole = cost(model, schedule, "schedule", problem.swaps === "round");
  const { mask, used } = whole;
  if ((mask & ~model.freeMask) !== 0) requireAtMost("schedule", schedule.devices, usableDevices(problem));
  const mode = modeAmong(problem, schedule);
  if (!problem.modes.includes(mode))
    throw new Illegal("schedule", `is ${mode}, and wanted is ${problem.modes.map((one) => `'${one}'`).join(" or ")}`);
  for (const [pool, { devices }] of Object.entries(problem.pools)) {
    const count = used.get(pool) ?? 0;
    if (count > devices) throw new Illegal("schedule", `uses ${count} devices of pool '${pool}', which has ${devices}`);
  }
  const missing = model.dag.components.filter((_, i) => (mask & (1 << i)) === 0);
  const [idle] = problem.useAll ? idleIn(problem, schedule) : [];
  if (idle !== undefined) throw new Illegal("schedule", idle);
  if (missing.length > 0) throw new Illegal("schedule", `does not run ${missing.map((c) => `'${c.id}'`).join(", ")}`);
  return whole;
}

/** Seconds between the ends of steps, of which `maxStaleness + 1` may be under way. */
export function overlapped({ maxStaleness }: PlanProblem, step: number, busy: number): number {
  return maxStaleness === 0 ? step : Math.max(busy, step / (maxStaleness + 1));
}

/** What a schedule and each of its parts cost. */
export type Cost = {
  readonly schedule: Schedule;
  readonly parts: readonly Cost[];
  readonly mask: number;
  readonly step: number;
  readonly busy: number;
  /** of `step`, what its own parts lose by taking turns: from the first to the second, and back when turns come round */
  readonly swap: number;
  readonly swapBack: number;
  /** devices by pool, and of each component in one */
  readonly used: ReadonlyMap<string, number>;
  readonly own: ReadonlyMap<string, number>;
};

function cost(model: PlanModel, schedule: Schedule, path: string, comesRound: boolean): Cost {
  const { problem, dag } = model;
  const { devices, items } = schedule;
  if (schedule.op === "node") return costNode(model, schedule, path);
  if (schedule.op === "pipeline") return costPipeline(model, schedule, path);

  const paths = [`${path}.first`, `${path}.second`] as const;
  const sides = [schedule.first, schedule.second] as const;
  for (const i of [0, 1] as const) requireItems(paths[i], sides[i], items);
  const round = schedule.op === "parallel" && problem.swaps === "round";
  const a = cost(model, schedule.first, paths[0], round);
  const b = cost(model, schedule.second, paths[1], round);
  const mask = a.mask | b.mask;
  const own = new Map([...a.own, ...b.own]);
  if (schedule.op === "temporal") {
    for (const [i, part] of [a, b].entries()) {
      if ((part.mask & ~model.freeMask) !== 0) requireAtMost(paths[i]!, sides[i]!.devices, devices);
    }
    requireOrder(model, a.mask, b.mask, path);
    const cycle = dag.cycles.find((c) => (c.mask & a.mask) !== 0 && (c.mask & b.mask) !== 0);
    if (cycle) throw new Illegal(path, "has members of a cycle take turns; run the cycle as one node, or own devices");
    if (!model.wishes.mayTakeTurns(a.mask, b.mask))
      throw new Illegal(path, "has components take turns that are to be kept apart");
    const { swap, swapBack } = turnSeconds(model, a.mask, b.mask, comesRound, ({ id, pool }) =>
      pool === undefined ? devices : own.get(id)!,
    );
    return {
      schedule,
      parts: [a, b],
      mask,
      step: a.step + b.step + swap + swapBack,
      busy: a.busy + b.busy + swap + swapBack,
      swap,
      swapBack,
      used: combine([a, b], Math.max),
      own,
    };
  }
  if (!problem.parallelIndependent) throw new Illegal(path, "'parallel' needs parallelIndependent");
  requireSplit(model, sides, [a, b], devices, path);
  requireOrder(model, a.mask, b.mask, path);
  requireOwnDevices(model, a.mask, b.mask, path);
  const inCycle = dag.cycles.some((c) => (c.mask & a.mask) !== 0 && (c.mask & b.mask) !== 0);
  if (inCycle || hasEdgeBetween(dag, a.mask, b.mask))
    throw new Illegal(path, "the sides of 'parallel' depend on each other");
  const [step, busy] = [Math.max(a.step, b.step), Math.max(a.busy, b.busy)];
  return {
    schedule,
    parts: [a, b],
    mask,
    step,
    busy,
    swap: 0,
    swapBack: 0,
    used: combine([a, b], (x, y) => x + y),
    own,
  };
}

function combine(parts: readonly Cost[], join: (a: number, b: number) => number): Map<string, number> {
  const used = new Map<string, number>();
  for (const part of parts) for (const [pool, count] of part.used) used.set(pool, join(used.get(pool) ?? 0, count));
  return used;
}

function costNode(model: PlanModel, schedule: Extract<Schedule, { op: "node" }>, path: string): Cost {
  const { problem, leaves } = model;
  const { devices, items } = schedule;
  const component = leaves.find(({ id }) => id === schedule.node);
  if (component === undefined) {
    const known = leaves.map(({ id }) => `'${id}'`).join(", ");
    throw new Illegal(`${path}.node`, `'${schedule.node}' is not a component; known are ${known}`);
  }
  const { members } = component;
  if (!model.wishes.mayBeOne(component))
    throw new Illegal(path, `'${schedule.node}' runs components that are to be kept apart`);
  const { pool } = members[0]!;
  if (pool !== undefined && problem.pools[pool]!.shared && devices !== problem.pools[pool]!.devices) {
    const all = problem.pools[pool]!.devices;
    throw new Illegal(`${path}.devices`, `'${devices}' should be ${all}: pool '${pool}' is used as a whole`);
  }
  const limits = limitsIn(problem, pool);
  const time = leastSeconds(members, devices, items, limits);
  if (time === Number.POSITIVE_INFINITY) {
    throw new Illegal(path, `'${schedule.node}' cannot run ${items} items on up to ${devices} devices`);
  }
  const mask = model.dag.components.reduce((all, c, i) => (members.includes(c.members[0]!) ? all | (1 << i) : all), 0);
  const used = new Map(pool === undefined ? [] : [[pool, devices]]);
  const own = new Map(pool === undefined ? [] : members.map(({ id }) => [id, devices]));
  return { schedule, parts: [], mask, step: time, busy: time, swap: 0, swapBack: 0, used, own };
}

/** The definition of a swap, pool by pool; they swap at the same time. */
function turnSeconds(
  { problem, dag }: PlanModel,
  first: number,
  second: number,
  comesRound: boolean,
  devicesOf: (node: PlanNode) => number,
): { swap: number; swapBack: number } {
  let slowest = { swap: 0, swapBack: 0 };
  for (const pool of [undefined, ...Object.keys(problem.pools)]) {
    const inPool = (mask: number): number =>
      dag.components.reduce((all, c, i) => (c.members[0]!.pool === pool ? all | (mask & (1 << i)) : all), 0);
    const [a, b] = [inPool(first), inPool(second)];
    if (a === 0 || b === 0) continue;
    const members = [...bitsOf(a | b)].flatMap((bit) => dag.components[bit]!.members);
    if (problem.residency === "lazy" && fitTogether(problem, members, devicesOf)) continue;
    const mostOf = (node: PlanNode): number => (pool === undefined ? usableDevices(problem) : devicesOf(node));
    const { swap, swapBack } = turnSwap({ problem, dag }, a, b, comesRound, mostOf);
    if (swap + swapBack > slowest.swap + slowest.swapBack) slowest = { swap, swapBack };
  }
  return slowest;
}

function costPipeline(model: PlanModel, schedule: Extract<Schedule, { op: "pipeline" }>, path: string): Cost {
  const { problem } = model;
  const { devices, items, chunk } = schedule;
  const flat = "stages" in schedule;
  const stages = flat ? schedule.stages : [schedule.first, schedule.second];
  const pathOf = (i: number): string => (flat ? `${path}.stages[${i}]` : `${path}.${i === 0 ? "first" : "second"}`);
  if (stages.length > 2 && problem.pipeline !== "kway") {
    throw new Illegal(`${path}.stages`, `${stages.length} stages need "pipeline": "kway"`);
  }
  if (!chunkAllowed(problem, items, chunk)) {
    const allowed =
      problem.granularities === "divisors" ? "a divisor of its items" : "a granularity that divides its items";
    throw new Illegal(`${path}.chunk`, `'${chunk}' is not ${allowed}, ${items}`);
  }
  const costs: Cost[] = [];
  let mask = 0;
  for (const [i, stage] of stages.entries()) {
    requireItems(pathOf(i), stage, chunk);
    const part = cost(model, stage, pathOf(i), problem.swaps === "round");
    requireOrder(model, mask, part.mask, path);
    mask |= part.mask;
    costs.push(part);
  }
  for (const part of costs) requireOwnDevices(model, part.mask, mask & ~part.mask, path);
  requireSplit(model, stages, costs, devices, path);
  const [slowest, busiest] = [Math.max(...costs.map((c) => c.step)), Math.max(...costs.map((c) => c.busy))];
  const count = items / chunk;
  const sum = costs.reduce((total, c) => total + c.step, 0);
  return {
    schedule,
    parts: costs,
    mask,
    step: sum + (count - 1) * slowest,
    busy: count * busiest,
    swap: 0,
    swapBack: 0,
    used: combine(costs, (x, y) => x + y),
    own: new Map(costs.flatMap((c) => [...c.own])),
  };
}

function requireAtMost(path: string, devices: number, available: number): void {
  if (devices > available) throw new Illegal(`${path}.devices`, `'${devices}' is above the ${available} it may use`);
}

function requireItems(path: string, schedule: Schedule, items: number): void {
  if (schedule.items !== items) throw new Illegal(`${path}.items`, `'${schedule.items}' should be ${items}`);
}

function requireSplit(
  { problem, freeMask }: PlanModel,
  parts: readonly Schedule[],
  costs: readonly Cost[],
  devices: number,
  path: string,
): void {
  const splitting = parts.filter((_, i) => (costs[i]!.mask & ~freeMask) !== 0);
  const sum = splitting.reduce((total, part) => total + part.devices, 0);
  if (sum > devices) throw new Illegal(path, `its parts use ${sum} devices of ${devices}`);
  const { splits } = problem;
  if (splits === "all" || splitting.length < 2) return;
  const odd = splitting.find((part) => part.devices % splits.multipleOf !== 0);
  if (odd) throw new Illegal(path, `a part of ${odd.devices} devices is not a multiple of ${splits.multipleOf}`);
}

function requireOwnDevices({ wishes }: PlanModel, first: number, second: number, path: string): void {
  if (!wishes.mayOwnDevices(first, second))
    throw new Illegal(path, "splits devices of components that are to be kept together");
}

/** What comes first may not need, directly or not, anything of what comes second. */
function requireOrder(model: PlanModel, first: number, second: number, path: string): void {
  if ((first & second) !== 0) {
    const twice = model.dag.components.find((_, i) => (first & second & (1 << i)) !== 0)!;
    throw new Illegal(path, `runs '${twice.id}' twice`);
  }
  if (hasEdgeBetween(model.dag, second, first))
    throw new Illegal(path, "its first part needs what its second part produces");
}

/** `{"op":"eval"}` of the problem `plan`: its answer for one given schedule. */
export function solveEval(input: unknown, options: SolveOptions = {}): EvalAnswer {
  const { input: problem, schedule } = readProblem(EvalProblem, input);
  const startedMs = options.nowMs?.() ?? 0;
  const { time, illegal } = evaluateSchedule(compileModel(problem), schedule);
  const milliseconds = (options.nowMs?.() ?? 0) - startedMs;
  return {
    feasible: illegal === null,
    time,
    illegal,
    mode: illegal === null ? modeOf(problem, schedule) : null,
    stats: { milliseconds },
  };
}
