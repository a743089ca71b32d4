import type { ComponentTime, PlanNode } from "./problem.ts";

/** Devices a node uses when it is given `devices`, or 0 where it cannot run. */
export function usedDevices(node: PlanNode, devices: number): number {
  const used = Math.floor(Math.min(devices, node.maxDevices ?? devices) / node.unit) * node.unit;
  return used >= 1 && used >= node.minDevices ? used : 0;
}

/** `u^alpha` by u, of formulas that were asked for: a power costs more than the rest, and is the same for every chunk. */
const powers = new WeakMap<ComponentTime, number[]>();

function powerOf(time: Extract<ComponentTime, { type: "formula" }>, used: number): number {
  if (time.alpha === 1) return used;
  let known = powers.get(time);
  if (known === undefined) {
    known = [];
    powers.set(time, known);
  }
  while (known.length <= used) known.push(known.length ** time.alpha);
  return known[used]!;
}

/** Seconds for `items` on exactly `used` devices, as profiled; Infinity below the first row of a table. */
export function profiledSeconds(time: ComponentTime, used: number, items: number): number {
  if (time.type === "formula") return time.base + (time.perItem * items) / powerOf(time, used);
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

/** Linear between columns, constant below the first, along the last segment above the last. */
function alongItems(columns: readonly number[], row: readonly number[], items: number): number {
  if (columns.length === 1 || items <= columns[0]!) return row[0]!;
  let column = 0;
  while (column < columns.length - 2 && columns[column + 1]! < items) column++;
  const part = (items - columns[column]!) / (columns[column + 1]! - columns[column]!);
  return row[column]! + part * (row[column + 1]! - row[column]!);
}

/** Per device, on exactly `used` of them. */
export function residentMemory({ memory }: PlanNode, used: number, items: number): number {
  return memory.fixed + memory.sharded / used + (memory.perItem * items) / used;
}

/** Relative slack of the memory limit, so that a sum that equals it does not fail by rounding. */
export const memorySlack = 1e-12;

export type Limits = { readonly batch: number; readonly memoryPerDevice: number };

/**
 * Seconds of a component (its members one after the other, all resident) for `items` on exactly `devices` devices;
 * Infinity where a member cannot run or the sum of memories does not fit.
 */
export function exactSeconds(members: readonly PlanNode[], devices: number, items: number, limits: Limits): number {
  let total = 0;
  let memory = 0;
  for (const node of members) {
    const used = usedDevices(node, devices);
    if (used === 0) return Number.POSITIVE_INFINITY;
    memory += residentMemory(node, used, node.stream ? limits.batch : items);
    total += node.stream
      ? (profiledSeconds(node.time, used, limits.batch) * items) / limits.batch
      : profiledSeconds(node.time, used, items);
  }
  return memory <= limits.memoryPerDevice * (1 + memorySlack) ? total : Number.POSITIVE_INFINITY;
}

/** `result[i]` is the least seconds on any count of devices up to `i * step`; idle devices are allowed. */
export function bestSecondsByLevel(
  members: readonly PlanNode[],
  levels: number,
  step: number,
  items: number,
  limits: Limits,
): Float64Array {
  const best = new Float64Array(levels + 1).fill(Number.POSITIVE_INFINITY);
  const only = members.length === 1 ? members[0]! : undefined;
  const stride = only === undefined ? 1 : only.unit;
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
