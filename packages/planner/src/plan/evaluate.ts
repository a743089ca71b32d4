import { readProblem, type SolveOptions } from "@treadle/contracts";
import { exactSeconds } from "./component-time.ts";
import { hasEdgeBetween, swapSeconds } from "./graph.ts";
import { chunkAllowed, compileModel, type PlanModel } from "./model.ts";
import { type EvalAnswer, EvalProblem, type PlanMode, type Schedule } from "./problem.ts";

class Illegal extends Error {
  readonly path: string;
  constructor(path: string, problem: string) {
    super(problem);
    this.path = path;
  }
}

/** Seconds of a schedule by the definition, or what is not allowed in it. Does not search. */
export function evaluateSchedule(
  model: PlanModel,
  schedule: Schedule,
):
  | { readonly time: number; readonly illegal: null }
  | { readonly time: null; readonly illegal: { path: string; problem: string } } {
  const { problem } = model;
  try {
    requireAtMost("schedule", schedule.devices, problem.devices);
    requireItems("schedule", schedule, problem.batch);
    const { mask, time } = cost(model, schedule, "schedule");
    const missing = model.dag.components.filter((_, i) => (mask & (1 << i)) === 0);
    if (missing.length > 0) throw new Illegal("schedule", `does not run ${missing.map((c) => `'${c.id}'`).join(", ")}`);
    return { time, illegal: null };
  } catch (error) {
    if (!(error instanceof Illegal)) throw error;
    return { time: null, illegal: { path: error.path, problem: error.message } };
  }
}

type Cost = { readonly mask: number; readonly time: number };

function cost(model: PlanModel, schedule: Schedule, path: string): Cost {
  const { problem, dag } = model;
  const { devices, items } = schedule;
  if (schedule.op === "node") {
    const index = dag.components.findIndex((component) => component.id === schedule.node);
    if (index < 0) {
      const known = dag.components.map((component) => `'${component.id}'`).join(", ");
      throw new Illegal(`${path}.node`, `'${schedule.node}' is not a component; known are ${known}`);
    }
    const { members } = dag.components[index]!;
    const limits = { batch: problem.batch, memoryPerDevice: problem.memoryPerDevice ?? Number.POSITIVE_INFINITY };
    let time = Number.POSITIVE_INFINITY;
    for (let used = 1; used <= devices; used++) time = Math.min(time, exactSeconds(members, used, items, limits));
    if (time === Number.POSITIVE_INFINITY) {
      throw new Illegal(path, `'${schedule.node}' cannot run ${items} items on up to ${devices} devices`);
    }
    return { mask: 1 << index, time };
  }
  if (schedule.op === "pipeline") return costPipeline(model, schedule, path);

  const [first, second] = [`${path}.first`, `${path}.second`];
  if (schedule.op === "temporal") {
    for (const [side, at] of [
      [schedule.first, first],
      [schedule.second, second],
    ] as const) {
      requireAtMost(at, side.devices, devices);
      requireItems(at, side, items);
    }
    const a = cost(model, schedule.first, first);
    const b = cost(model, schedule.second, second);
    requireOrder(model, a.mask, b.mask, path);
    return { mask: a.mask | b.mask, time: a.time + b.time + swapSeconds(dag, a.mask, b.mask) };
  }
  if (!problem.parallelIndependent) throw new Illegal(path, "'parallel' needs parallelIndependent");
  requireSplit(model, [schedule.first, schedule.second], devices, path);
  for (const [side, at] of [
    [schedule.first, first],
    [schedule.second, second],
  ] as const)
    requireItems(at, side, items);
  const a = cost(model, schedule.first, first);
  const b = cost(model, schedule.second, second);
  requireOrder(model, a.mask, b.mask, path);
  if (hasEdgeBetween(dag, a.mask, b.mask)) throw new Illegal(path, "the sides of 'parallel' depend on each other");
  return { mask: a.mask | b.mask, time: Math.max(a.time, b.time) };
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
  requireSplit(model, stages, devices, path);
  let mask = 0;
  let sum = 0;
  let slowest = Number.NEGATIVE_INFINITY;
  for (const [i, stage] of stages.entries()) {
    requireItems(pathOf(i), stage, chunk);
    const { mask: stageMask, time } = cost(model, stage, pathOf(i));
    requireOrder(model, mask, stageMask, path);
    mask |= stageMask;
    sum += time;
    slowest = Math.max(slowest, time);
  }
  return { mask, time: sum + (items / chunk - 1) * slowest };
}

function requireAtMost(path: string, devices: number, available: number): void {
  if (devices > available) throw new Illegal(`${path}.devices`, `'${devices}' is above the ${available} it may use`);
}

function requireItems(path: string, schedule: Schedule, items: number): void {
  if (schedule.items !== items) throw new Illegal(`${path}.items`, `'${schedule.items}' should be ${items}`);
}

function requireSplit(model: PlanModel, parts: readonly Schedule[], devices: number, path: string): void {
  const sum = parts.reduce((total, part) => total + part.devices, 0);
  if (sum > devices) throw new Illegal(path, `its parts use ${sum} devices of ${devices}`);
  const { splits } = model.problem;
  if (splits === "all") return;
  const odd = parts.find((part) => part.devices % splits.multipleOf !== 0);
  if (odd) throw new Illegal(path, `a part of ${odd.devices} devices is not a multiple of ${splits.multipleOf}`);
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

/** The name for what a schedule does: take turns, own devices, or both. */
export function modeOf(schedule: Schedule): PlanMode {
  let temporal = false;
  let spatial = false;
  const visit = (part: Schedule): void => {
    if (part.op === "node") return;
    if (part.op === "temporal") temporal = true;
    else spatial = true;
    for (const side of "stages" in part ? part.stages : [part.first, part.second]) visit(side);
  };
  visit(schedule);
  if (temporal && spatial) return "hybrid";
  return spatial ? "spatial" : "temporal";
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
    mode: illegal === null ? modeOf(schedule) : null,
    stats: { milliseconds },
  };
}
