import { exactSeconds } from "./component-time.ts";
import { bitsOf, swapSeconds } from "./graph.ts";
import type { PlanModel } from "./model.ts";
import type { PlanAlternative, PlanStats, Schedule } from "./problem.ts";

const seconds = (value: number): string => `${Number(value.toPrecision(4))} s`;
const percent = (part: number): string => `${Math.round(part * 100)} %`;

/** What was chosen, what limits it, what the alternatives cost, and how sure that is; a sentence each. */
export function explainPlan(
  model: PlanModel,
  schedule: Schedule | null,
  alternatives: readonly PlanAlternative[],
  stats: PlanStats,
): string[] {
  const { problem } = model;
  if (schedule === null) return explainInfeasible(model, stats);
  const costed = costTree(model, schedule);
  const [best] = alternatives;
  const lines = [
    `${best!.mode}: ${problem.batch} items on ${problem.devices} devices in ${seconds(costed.time)}: ${describe(schedule)}`,
    ...limits(costed, costed.time),
  ];
  for (const cycle of model.dag.components.filter((component) => component.members.length > 1)) {
    lines.push(
      `'${cycle.id}' is a cycle, so its members take turns on the same devices; profile them on disjoint devices to plan a split of it`,
    );
  }
  for (const other of alternatives.slice(1)) {
    lines.push(
      `the best ${other.mode} schedule takes ${seconds(other.time)}, ${(other.time / costed.time).toFixed(2)} times as long: ${describe(other.schedule)}`,
    );
  }
  for (const mode of ["temporal", "spatial"] as const) {
    if (alternatives.some((a) => a.mode === mode)) continue;
    lines.push(
      `no ${mode} schedule is feasible${mode === "spatial" && model.dag.components.length > model.levels ? ": there are more components than devices to give" : ""}`,
    );
  }
  if (!stats.exact) lines.push(`stopped at the deadline: at most ${percent(stats.gap)} above the least time possible`);
  return lines;
}

/** The bottleneck of every level of a schedule, from the whole down to one component. */
export function limitsOf(model: PlanModel, schedule: Schedule): string[] {
  const costed = costTree(model, schedule);
  return limits(costed, costed.time);
}

function describe(schedule: Schedule): string {
  if (schedule.op === "node") return `'${schedule.node}' on ${schedule.devices}`;
  const parts = "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
  const inner = parts.map((part) => (part.op === "node" ? describe(part) : `(${describe(part)})`));
  if (schedule.op === "temporal") return inner.join(" then ");
  if (schedule.op === "parallel") return inner.join(" beside ");
  return `${inner.join(" feeding ")} in chunks of ${schedule.chunk}`;
}

type Costed = {
  readonly schedule: Schedule;
  readonly time: number;
  readonly mask: number;
  readonly swap: number;
  readonly parts: readonly Costed[];
};

function costTree(model: PlanModel, schedule: Schedule): Costed {
  if (schedule.op === "node") {
    const index = model.dag.components.findIndex((component) => component.id === schedule.node);
    const itemsIndex = model.items.indexOf(schedule.items);
    const time = model.leafSeconds(index, itemsIndex)[schedule.devices / model.step]!;
    return { schedule, time, mask: 1 << index, swap: 0, parts: [] };
  }
  const parts = ("stages" in schedule ? schedule.stages : [schedule.first, schedule.second]).map((part) =>
    costTree(model, part),
  );
  const mask = parts.reduce((all, part) => all | part.mask, 0);
  const sum = parts.reduce((total, part) => total + part.time, 0);
  const slowest = Math.max(...parts.map((part) => part.time));
  if (schedule.op === "temporal") {
    const swap = swapSeconds(model.dag, parts[0]!.mask, parts[1]!.mask);
    return { schedule, time: sum + swap, mask, swap, parts };
  }
  if (schedule.op === "parallel") return { schedule, time: slowest, mask, swap: 0, parts };
  return { schedule, time: sum + (schedule.items / schedule.chunk - 1) * slowest, mask, swap: 0, parts };
}

const nameOf = (model: Costed): string =>
  model.schedule.op === "node" ? `'${model.schedule.node}'` : `the part (${describe(model.schedule)})`;

/** Follows the largest share of the time down the tree until a single component is left. */
function limits(costed: Costed, total: number): string[] {
  const lines: string[] = [];
  let repeat = 1;
  for (let at = costed; at.parts.length > 0; ) {
    const slowest = at.parts.reduce((a, b) => (b.time > a.time ? b : a));
    const { schedule } = at;
    if (schedule.op === "pipeline") {
      const count = schedule.items / schedule.chunk;
      const busy = count * slowest.time * repeat;
      const faster = at.parts
        .filter((part) => part !== slowest)
        .map((part) => `${nameOf(part)} waits ${percent(1 - (count * part.time) / at.time)} of it`);
      lines.push(
        `${nameOf(slowest)} is the bottleneck of the pipeline: ${count} chunks of ${seconds(slowest.time)} are ${percent(busy / total)} of the time; ${faster.join("; ")}`,
      );
      repeat *= count;
    } else if (schedule.op === "temporal") {
      const swaps = at.swap > 0 ? `; swapping costs ${seconds(at.swap * repeat)}` : "";
      lines.push(
        `${nameOf(slowest)} is the longest turn: ${percent((slowest.time * repeat) / total)} of the time${swaps}`,
      );
    } else {
      lines.push(`${nameOf(slowest)} is the slower of the parts that run side by side`);
    }
    at = slowest;
  }
  return lines;
}

function explainInfeasible(model: PlanModel, stats: PlanStats): string[] {
  const { problem, dag } = model;
  const lines: string[] = [];
  for (const index of bitsOf(model.all.mask)) {
    const { id, members } = dag.components[index]!;
    if (model.items.some((_, i) => Number.isFinite(model.leafSeconds(index, i)[model.levels]!))) continue;
    const free = { batch: problem.batch, memoryPerDevice: Number.POSITIVE_INFINITY };
    const runs = Array.from({ length: problem.devices }, (_, i) => i + 1).some((d) =>
      Number.isFinite(exactSeconds(members, d, 1, free)),
    );
    lines.push(
      runs
        ? `'${id}' needs more than the ${problem.memoryPerDevice} of memory a device has, even for the smallest chunk; give it more devices, shard it, or allow smaller granularities`
        : `'${id}' does not run on up to ${problem.devices} devices: its minDevices, unit or profile asks for more`,
    );
  }
  if (lines.length === 0)
    lines.push(
      stats.exact
        ? "every component can run, but no schedule gives all of them enough devices and memory"
        : "no feasible schedule was found before the deadline",
    );
  return lines;
}
