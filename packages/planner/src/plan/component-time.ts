import type { ComponentTime, PlanNode, PlanProblem } from "./problem.ts";

/** Devices a node uses when it is given `devices`, or 0 where it cannot run. */
export function usedDevices(node: PlanNode, devices: number): number {
  const used = Math.floor(Math.min(devices, mostDevices(node)) / node.unit) * node.unit;
  return used >= 1 && used >= node.minDevices ? used : 0;
}

/** That a node can use, however many there are. */
export function mostDevices({ unit, maxDevices = Number.POSITIVE_INFINITY, maxRanks }: PlanNode): number {
  return Math.min(maxDevices, maxRanks === undefined ? Number.POSITIVE_INFINITY : maxRanks * unit);
}

type FormulaTime = Extract<ComponentTime, { type: "formula" }>;

/** `u^alpha` by u, of formulas that were asked for: a power costs more than the rest, and is the same for every chunk. */
const powers = new WeakMap<ComponentTime, number[]>();

/** Up to `used` at least. */
function powersOf(time: FormulaTime, used: number): readonly number[] {
  let known = powers.get(time);
  if (known === undefined) {
    known = [];
    powers.set(time, known);
  }
  while (known.length <= used) known.push(known.length ** time.alpha);
  return known;
}

const formulaSeconds = (time: FormulaTime, power: number, items: number): number =>
  time.base + (time.perItem * items) / power;

/** Seconds for `items` on exactly `used` devices, as profiled; Infinity below the first row of a table. */
export function profiledSeconds(time: ComponentTime, used: number, items: number): number {
  if (time.type === "formula") return formulaSeconds(time, powersOf(time, used)[used]!, items);
  const { devices } = time;
  if (used < devices[0]!) return Number.POSITIVE_INFINITY;
  const last = devices.length - 1;
  if (used >= devices[last]!) return alongItems(time.items, time.seconds[last]!, items);
  let [row, above] = [0, last];
  while (above - row > 1) {
    const middle = (row + above) >> 1;
    if (devices[middle]! <= used) row = middle;
    else above = middle;
  }
  const low = alongItems(time.items, time.seconds[row]!, items);
  if (devices[row] === used) return low;
  const high = alongItems(time.items, time.seconds[row + 1]!, items);
  const from = Math.log2(devices[row]!);
  const part = (Math.log2(used) - from) / (Math.log2(devices[row + 1]!) - from);
  return low + part * (high - low);
}

/** Linear between columns, constant below the first, along the last segment above the last; where that falls, to no less than 0. */
function alongItems(columns: readonly number[], row: readonly number[], items: number): number {
  if (columns.length === 1 || items <= columns[0]!) return row[0]!;
  let column = 0;
  while (column < columns.length - 2 && columns[column + 1]! < items) column++;
  const part = (items - columns[column]!) / (columns[column + 1]! - columns[column]!);
  return Math.max(0, row[column]! + part * (row[column + 1]! - row[column]!));
}

/** What of its memory stays on a device when it leaves. */
export const residualShare = ({ tags }: Pick<PlanNode, "tags">): number =>
  tags === undefined ? 0 : Math.max(0, 1 - tags.reduce((sum, { share }) => sum + share, 0));

/** Of one rank, per device, on exactly `used` of them. */
export function rankMemory({ memory }: Pick<PlanNode, "memory">, used: number, items: number): number {
  return memory.fixed + memory.sharded / used + (memory.perItem * items) / used;
}

/** Of all ranks on the fullest device, on exactly `used` of them. It never grows with devices. */
export function residentMemory(
  node: Pick<PlanNode, "memory" | "unit" | "minRanks">,
  used: number,
  items: number,
): number {
  const ranksPerDevice = node.unit === 1 ? Math.max(1, Math.ceil(node.minRanks / used)) : 1;
  return ranksPerDevice * rankMemory(node, used, items);
}

/** Relative slack of the memory limit, so that a sum that equals it does not fail by rounding. */
export const memorySlack = 1e-12;

/** `cycleMemory`: whether members are in memory together, which is the default */
export type Limits = Partial<Pick<PlanProblem, "cycleMemory">> & {
  readonly batch: number;
  readonly memoryPerDevice: number;
};

/**
 * Seconds of a component (its members one after the other, all resident unless they are loaded by turns) for `items` on exactly `devices` devices;
 * Infinity where a member cannot run, or what is resident does not fit.
 */
export function exactSeconds(members: readonly PlanNode[], devices: number, items: number, limits: Limits): number {
  let total = 0;
  let memory = 0;
  /** beside what stays of all, of the member that leaves most of itself when it leaves */
  let mostLeaving = 0;
  for (const node of members) {
    const used = usedDevices(node, devices);
    if (used === 0) return Number.POSITIVE_INFINITY;
    const own = residentMemory(node, used, node.stream ? limits.batch : items);
    const stays = limits.cycleMemory === "by-turns" ? own * residualShare(node) : own;
    memory += stays;
    mostLeaving = Math.max(mostLeaving, own - stays);
    total += node.stream
      ? (profiledSeconds(node.time, used, limits.batch) * items) / limits.batch
      : profiledSeconds(node.time, used, items);
  }
  return memory + mostLeaving <= limits.memoryPerDevice * (1 + memorySlack) ? total : Number.POSITIVE_INFINITY;
}

/** The least seconds on any count of devices up to `devices`; idle ones are allowed. */
export function leastSeconds(members: readonly PlanNode[], devices: number, items: number, limits: Limits): number {
  if (onlyGain(members)) return exactSeconds(members, devices, items, limits);
  let least = Number.POSITIVE_INFINITY;
  for (let used = 1; used <= devices; used++) least = Math.min(least, exactSeconds(members, used, items, limits));
  return least;
}

/** Whether more devices make none of them slower, so that the most are the best. Memory per device never grows with them. */
const onlyGain = (members: readonly PlanNode[]): boolean =>
  members.every(({ time }) => time.type === "formula" && time.alpha >= 0);

/** `result[i]` is the least seconds on any count of devices up to `i * step`. */
export function leastSecondsByLevel(
  members: readonly PlanNode[],
  levels: number,
  step: number,
  items: number,
  limits: Limits,
): Float64Array {
  const best = new Float64Array(levels + 1).fill(Number.POSITIVE_INFINITY);
  const only = members.length === 1 ? members[0]! : undefined;
  const gain = onlyGain(members);
  if (gain && only?.time.type === "formula") {
    fillByFormula(best, only, only.time, step, items, limits);
    return best;
  }
  const stride = gain ? step : (only?.unit ?? 1);
  let least = Number.POSITIVE_INFINITY;
  let devices = stride;
  for (let level = 1; level <= levels; level++) {
    for (; devices <= level * step; devices += stride) {
      const seconds = exactSeconds(members, devices, items, limits);
      if (seconds < least) least = seconds;
    }
    best[level] = least;
  }
  return best;
}

/** Of a component that only gains from devices: what fits in memory on some also fits on more. */
function fillByFormula(
  best: Float64Array,
  node: PlanNode,
  time: FormulaTime,
  step: number,
  items: number,
  { batch, memoryPerDevice }: Limits,
): void {
  const limit = memoryPerDevice * (1 + memorySlack);
  const power = powersOf(time, usedDevices(node, (best.length - 1) * step));
  let fits = false;
  for (let level = 1; level < best.length; level++) {
    const used = usedDevices(node, level * step);
    fits ||= used > 0 && residentMemory(node, used, node.stream ? batch : items) <= limit;
    if (!fits) continue;
    best[level] = node.stream
      ? (formulaSeconds(time, power[used]!, batch) * items) / batch
      : formulaSeconds(time, power[used]!, items);
  }
}
