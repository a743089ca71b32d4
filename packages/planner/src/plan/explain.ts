import { wishedOf } from "./blamed-wishes.ts";
import { exactSeconds, leastSeconds } from "./component-time.ts";
import { crampedCycles, describeCramped } from "./cycle-room.ts";
import { type Cost, costSchedule, overlapped } from "./evaluate.ts";
import { bitsOf } from "./graph.ts";
import type { PlanModel } from "./model.ts";
import { usableDevices } from "./plan-wishes.ts";
import { type PlanAlternative, type PlanMode, type PlanStats, planModes, type Schedule } from "./problem.ts";
import { limitsIn, memoryOfPool } from "./turn-swap.ts";

const seconds = (value: number): string => `${Number(value.toPrecision(4))} s`;
const percent = (part: number): string => `${Math.round(part * 100)} %`;
/** Where all takes no time, no share of it is more than another. */
const shareOf = (part: number, whole: number): string => percent(whole > 0 ? part / whole : 0);
const timesAsLong = (time: number, best: number): string =>
  best > 0 ? `${(time / best).toFixed(2)} times as long` : time > 0 ? "and the other none" : "as long";

export type Explained = {
  /** modes that are proven to have no schedule */
  readonly empty?: readonly PlanMode[];
  /** modes whose search the deadline cut short before it found any */
  readonly unsearched?: readonly PlanMode[];
  /** modes that have a schedule, though it may be none of the alternatives */
  readonly found?: readonly PlanMode[];
  /** what keeps it from being faster, where that is not what the schedule alone says */
  readonly limits?: readonly string[] | undefined;
  /** where there is none: whether there is one without wishes, as far as it is known */
  readonly isWishes?: boolean | undefined;
  /** items of a step, where another batch was searched for */
  readonly batch?: number | undefined;
};

/** `layout`: what is where, of a plan whose devices are others than its schedule's. */
type Described = PlanAlternative & { readonly layout?: string | undefined };

/**
 * What was chosen (the first of the alternatives, by `schedule`), what limits it, what the others cost, and how sure that
 * is; a sentence each.
 */
export function explainPlan(
  model: PlanModel,
  schedule: Schedule | null,
  alternatives: readonly Described[],
  stats: PlanStats,
  { empty = [], unsearched = [], found = [], limits, isWishes, batch = model.problem.batch }: Explained = {},
): string[] {
  const { problem } = model;
  if (schedule === null) return explainInfeasible(model, stats, { unsearched, isWishes });
  const cost = costSchedule(model, schedule);
  const [best] = alternatives;
  const pools = Object.entries(problem.pools).map(([name, pool]) => ` and ${pool.devices} of '${name}'`);
  const lines = [
    `${best!.mode}: ${batch} items on ${usableDevices(problem)} devices${pools.join("")} in ${seconds(best!.time)}: ${best!.layout ?? describe(best!.schedule)}`,
    ...(limits ?? limitsOf(cost)),
    ...ranksAtLimit(model, schedule),
  ];
  if (problem.maxStaleness > 0) {
    const hidden = cost.step - overlapped(problem, cost.step, cost.busy);
    lines.push(
      `up to ${problem.maxStaleness + 1} steps overlap: by its schedule, a step takes ${seconds(cost.step)} from beginning to end, and ${seconds(hidden)} of it pass beside other steps`,
    );
  }
  for (const cycle of model.dag.components.filter((component) => component.members.length > 1)) {
    lines.push(
      `'${cycle.id}' is a cycle, so its members take turns on the same devices; "cycles": "split" also plans them on disjoint devices`,
    );
  }
  for (const other of alternatives.slice(1)) {
    const takes = `takes ${seconds(other.time)}, ${timesAsLong(other.time, best!.time)}: ${other.layout ?? describe(other.schedule)}`;
    lines.push(
      other.proven
        ? `the best ${other.mode} schedule ${takes}`
        : `the best ${other.mode} schedule that was found ${takes}; it is not proven to be the best, which takes at least ${seconds(other.bound)}`,
    );
  }
  for (const mode of planModes) {
    if (!problem.modes.includes(mode) || found.includes(mode) || alternatives.some((a) => a.mode === mode)) continue;
    if (unsearched.includes(mode)) lines.push(outOfTime([mode]));
    else if (!empty.includes(mode)) lines.push(`no ${mode} schedule was found; it is not proven that there is none`);
    else if (mode !== "hybrid") {
      const reason = mode === "spatial" ? whyNotSpatial(model) : undefined;
      lines.push(`no ${mode} schedule is feasible${reason === undefined ? "" : `: ${reason}`}`);
    }
  }
  if (!stats.exact)
    lines.push(`not proven to be the best: at most ${percent(stats.gap)} above the least time possible`);
  else if (!best!.proven) lines.push(`not proven to be the best: no plan takes less than ${seconds(best!.bound)}`);
  return lines;
}

/** What alone keeps components from having devices of their own, each kind of device by itself. */
function whyNotSpatial({ problem, dag, levels }: PlanModel): string | undefined {
  const quoted = (ids: readonly string[]): string => ids.map((id) => `'${id}'`).join(" and ");
  const componentOf = (id: string): number =>
    dag.components.findIndex(({ members }) => members.some((each) => each.id === id));
  const joined = problem.together.find((ids) => new Set(ids.map(componentOf)).size > 1);
  if (joined) return `${quoted(joined)} are to have the same devices`;
  const inPool = (pool: string | undefined) => dag.components.filter(({ members }) => members[0]!.pool === pool);
  if (inPool(undefined).length > levels) return "there are more components than devices to give";
  const pools = Object.entries(problem.pools);
  const crowded = pools.find(([name, { shared, devices }]) => inPool(name).length > (shared ? 1 : devices));
  if (crowded === undefined) return undefined;
  const [name, { shared }] = crowded;
  return shared
    ? `${quoted(inPool(name).map(({ id }) => id))} are pinned to the same devices`
    : `there are more components than devices of pool '${name}'`;
}

/** Components that have as many ranks as they may, where the plan has more devices to give. */
function ranksAtLimit({ problem }: PlanModel, schedule: Schedule): string[] {
  return problem.nodes.flatMap(({ id, unit, maxRanks, maxDevices = Number.POSITIVE_INFINITY, pool }) => {
    const available = pool === undefined ? usableDevices(problem) : (problem.pools[pool]?.devices ?? 0);
    if (maxRanks === undefined || maxRanks * unit >= Math.min(maxDevices, available)) return [];
    if ((devicesOf(schedule, id) ?? 0) < maxRanks * unit) return [];
    return [
      `'${id}' has '${maxRanks}' ${maxRanks === 1 ? "rank" : "ranks"}, as many as maxRanks allows; raise it to let a plan give it more of the ${available} devices`,
    ];
  });
}

function devicesOf(schedule: Schedule, id: string): number | undefined {
  if (schedule.op === "node") return schedule.node === id ? schedule.devices : undefined;
  const parts = "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
  return parts.map((part) => devicesOf(part, id)).find((devices) => devices !== undefined);
}

function describe(schedule: Schedule): string {
  if (schedule.op === "node") return `'${schedule.node}' on ${schedule.devices}`;
  const parts = "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
  const inner = parts.map((part) => (part.op === "node" ? describe(part) : `(${describe(part)})`));
  if (schedule.op === "temporal") return inner.join(" then ");
  if (schedule.op === "parallel") return inner.join(" beside ");
  return `${inner.join(" feeding ")} in chunks of ${schedule.chunk}`;
}

const nameOf = ({ schedule }: Cost): string =>
  schedule.op === "node" ? `'${schedule.node}'` : `the part (${describe(schedule)})`;

/**
 * The bottleneck of every level of a schedule, from the whole down to one component, along the largest share of the time. `shown`: seconds
 * that a step is said to take, where these are others than the schedule's, whose seconds the parts keep.
 */
export function limitsOf(cost: Cost, shown = cost.step): string[] {
  const ofShown = (part: number): string => shareOf(Math.min(part, shown), shown);
  const lines: string[] = [];
  let repeat = 1;
  for (let at = cost; at.parts.length > 0; ) {
    const slowest = at.parts.reduce((a, b) => (b.step > a.step ? b : a));
    const { schedule } = at;
    if (schedule.op === "pipeline") {
      const count = schedule.items / schedule.chunk;
      const busy = count * slowest.step * repeat;
      const faster = at.parts
        .filter((part) => part !== slowest)
        .map((part) => `${nameOf(part)} waits ${ofShown(repeat * (at.step - count * part.step))} of it`);
      lines.push(
        `${nameOf(slowest)} is the bottleneck of the pipeline: ${count} ${count === 1 ? "chunk" : "chunks"} of ${seconds(slowest.step)} are ${ofShown(busy)} of the time; ${faster.join("; ")}`,
      );
      repeat *= count;
    } else if (schedule.op === "temporal") {
      const swapping = (at.swap + at.swapBack) * repeat;
      const swaps = swapping > 0 ? `; swapping costs ${seconds(swapping)}` : "";
      lines.push(`${nameOf(slowest)} is the longest turn: ${ofShown(slowest.step * repeat)} of the time${swaps}`);
    } else {
      lines.push(`${nameOf(slowest)} is the slower of the parts that run side by side`);
    }
    at = slowest;
  }
  return lines;
}

/** Of modes of which a search that had longer might find a schedule. */
export const outOfTime = (modes: readonly PlanMode[]): string =>
  `the time for the search ran out before a ${modes.join(" or ")} schedule was found, so whether there is one is not known; give the search a longer deadline`;

function explainInfeasible(
  model: PlanModel,
  stats: PlanStats,
  { unsearched = [], isWishes }: Pick<Explained, "unsearched" | "isWishes">,
): string[] {
  const { problem, dag } = model;
  const lines: string[] = [];
  for (const index of bitsOf(model.all.mask)) {
    const { id, members } = dag.components[index]!;
    if (model.items.some((_, i) => Number.isFinite(model.leafSeconds(index, i)[model.levels]!))) continue;
    if (!model.wishes.mayBeOne(dag.components[index]!)) {
      lines.push(
        `'${id}' is a cycle that runs as one, but members of it are to be kept apart; drop that wish, or allow "cycles": "split"`,
      );
      continue;
    }
    const { pool } = members[0]!;
    const free = { batch: problem.batch, memoryPerDevice: Number.POSITIVE_INFINITY };
    const devices = pool === undefined ? usableDevices(problem) : problem.pools[pool]!.devices;
    const runs = Array.from({ length: devices }, (_, i) => i + 1).some((d) =>
      Number.isFinite(exactSeconds(members, d, 1, free)),
    );
    const limited = members.filter(({ maxRanks }) => maxRanks !== undefined);
    const unlimited = members.map((member) => ({ ...member, maxRanks: undefined }));
    const limits = limitsIn(problem, pool);
    const isLimited =
      limited.length > 0 &&
      model.items.some((items) => Number.isFinite(leastSeconds(unlimited, devices, items, limits)));
    const remedy = isLimited
      ? `raise maxRanks, which is ${limited.map((member) => `'${member.maxRanks}' for '${member.id}'`).join(" and ")}: with more ranks it would fit`
      : "give it more devices, shard it, or allow smaller granularities";
    lines.push(
      runs
        ? `'${id}' needs more than the ${memoryOfPool(problem, pool)} of memory a device has, even for the smallest chunk; ${remedy}`
        : `'${id}' does not run on up to ${devices} devices: its minDevices, unit or profile asks for more`,
    );
  }
  lines.push(...crampedCycles(problem, dag).map((cycle) => describeCramped(cycle, String)));
  const wished = wishedOf(problem);
  if (lines.length === 0)
    lines.push(
      stats.exact
        ? isWishes
          ? `every component can run, but no schedule keeps all that is wished (${wished.join(", ")})`
          : isWishes === undefined && wished.length > 0
            ? "every component can run, but no schedule that keeps all wishes gives each of them enough devices and memory"
            : "every component can run, but no schedule gives all of them enough devices and memory"
        : unsearched.length > 0
          ? outOfTime(unsearched)
          : "no schedule was found; it is not proven that there is none",
    );
  return lines;
}
