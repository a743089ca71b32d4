/** From what was measured of one component to what the search reads: a table of seconds and a formula of memory. */
import { type ComponentProfile, mean, type ProfileSample } from "@treadle/contracts";
import { divisorsOf } from "../plan/model.ts";
import type { ComponentTime, PlanNode } from "../plan/problem.ts";
import { fittedSeconds } from "../profile/time-fit.ts";
import { unevennessAt } from "../profile/unevenness.ts";
import { sharedOut } from "../profile/whole-items.ts";

/** How far the planner looks: more devices or items than these do not occur. */
export type Range = {
  readonly minDevices: number;
  readonly maxDevices: number;
  readonly batch: number;
  /** in whose items the table counts; as many of them are the batch's (`divisibleBatch`). Default: the batch */
  readonly searchedBatch?: number | undefined;
  /** of the steps that were measured */
  readonly measuredBatch: number;
  /** what it takes one at a time, for each item of the batch: a rank takes whole ones. Infinity where it takes nothing */
  readonly takenPerItem: number;
  /** members of a cycle pass the whole batch on at its end: a part of it takes as long */
  readonly isWhole?: boolean | undefined;
};

/**
 * Rows are this far apart, and at least a unit: between them a table is linear in the logarithm of devices, which is off
 * by less than 0.1 % of a time that is inverse to them.
 */
const rowRatio = 1 / 16;
/** Rounds of items whose edges are rows of their own; with more, one round less is a smaller step than between rows. */
const mostRounds = 8;

/**
 * Seconds by device and item count. Where something was measured the table has exactly that; elsewhere it has the fit,
 * scaled by how far the fit is from what was measured nearby. Without a fit, work is taken to be proportional to items,
 * fewer devices to take as much longer, and more devices to bring nothing.
 */
export function timeTable(profile: ComponentProfile, range: Range): Extract<ComponentTime, { type: "table" }> {
  const samples = mergeSamples(profile, range);
  const { searchedBatch = range.batch } = range;
  const unit = profile.devicesPerRank;
  const last = Math.max(range.minDevices, range.maxDevices);
  const items = new Set([range.batch]);
  if (!range.isWhole) {
    for (const count of divisorsOf(searchedBatch)) items.add((count * range.batch) / searchedBatch);
    for (const sample of samples) items.add(sample.items);
  }
  const devices = new Set([range.minDevices, last]);
  for (let count = unit; count < last; ) {
    if (count > range.minDevices) devices.add(count);
    count += unit * Math.max(1, Math.floor((count / unit) * rowRatio));
  }
  // Where one round of items less is needed, time falls at once.
  for (const column of items) {
    for (let round = 1; round <= mostRounds; round++) {
      const count = Math.ceil(Math.round(column * range.takenPerItem) / round) * unit;
      for (const edge of [count - unit, count]) if (edge > range.minDevices && edge < last) devices.add(edge);
    }
  }
  for (const sample of samples) {
    if (sample.devices >= range.minDevices && sample.devices <= last) devices.add(sample.devices);
  }
  const rows = [...devices].sort((a, b) => a - b);
  const columns = [...items].sort((a, b) => a - b);
  return {
    type: "table",
    devices: rows,
    items: columns.map((column) => (column * searchedBatch) / range.batch),
    seconds: rows.map((row) => columns.map((column) => secondsAt(profile, range, samples, row, column))),
  };
}

/** What one rank takes at once, while its fellow ranks take theirs. */
export type Taken = {
  /** of the step's items, 0 to 1 */
  readonly share: number;
  /** items that a step brings */
  readonly itemsPerStep: number;
  readonly ranks: number;
  /** of these, as many as can compute at the same time */
  readonly concurrency: number;
  /** of all ranks */
  readonly devices: number;
  /** items that a step puts */
  readonly batch: number;
};

/** The point of a profile that says how long it takes: items of the batch over all ranks that have any, and their devices. */
export function pointOf(profile: ComponentProfile, taken: Taken): { readonly items: number; readonly devices: number } {
  const { share, itemsPerStep, ranks, concurrency, devices, batch } = taken;
  const largest = Math.ceil(itemsPerStep / ranks) / itemsPerStep;
  // Where the whole batch was measured on these devices, the busiest rank had the largest fair share of it.
  const isMeasured =
    Math.abs(share - largest) < 1e-9 &&
    profile.samples.some((each) => each.devices === devices && each.items === batch);
  if (isMeasured) return { items: roundedItems((batch * concurrency) / ranks), devices };
  // With fewer batches than ranks the others have nothing, and their devices do not count.
  const busyRanks = Math.min(concurrency, Math.ceil(1 / share - 1e-9));
  return { items: roundedItems(share * busyRanks * batch), devices: (devices / concurrency) * busyRanks };
}

/** So that it meets measured points. */
const roundedItems = (items: number): number => Math.round(1e9 * items) / 1e9;

/**
 * Seconds for `items` at a time over all ranks, each of which has its equal part, whether that is whole items or not;
 * `batch` is the step's, `measuredBatch` that of the steps that were measured.
 */
export function measuredSeconds(
  profile: ComponentProfile,
  devices: number,
  items: number,
  batch: number,
  measuredBatch = batch,
): number {
  const equalParts = { takenPerItem: Number.POSITIVE_INFINITY, batch, measuredBatch };
  return secondsAt(profile, equalParts, mergeSamples(profile, equalParts), devices, items);
}

type Where = Pick<Range, "takenPerItem" | "batch" | "measuredBatch">;

/** `offBy`: the logarithm of what was measured over what the fit says. */
type Measured = ProfileSample & { readonly offBy?: number };

/** One sample a point: the one that rests on most, and on uncontended measurements where there are any. */
function mergeSamples(profile: ComponentProfile, range: Where): Measured[] {
  const byPoint = new Map<string, ProfileSample>();
  for (const sample of profile.samples) {
    const point = `${sample.devices} ${sample.items}`;
    const known = byPoint.get(point);
    const better =
      known === undefined ||
      (known.contended && !sample.contended) ||
      (known.contended === sample.contended && sample.accepted > known.accepted);
    if (better) byPoint.set(point, sample);
  }
  return [...byPoint.values()].map((sample) => {
    const { devices, items, wholeItems = items, unevenness = 1 } = sample;
    const isWhole = items >= range.measuredBatch;
    // As the fit was made: of what the busiest rank had, if it had taken no longer for its items than the others.
    const expected = fittedSeconds(profile, { devices, items: wholeItems, isWhole, batch: range.measuredBatch }) ?? 0;
    const isComparable = expected > 0 && sample.seconds > 0;
    const seconds = sample.seconds / (countsBusiest(profile, isWhole) ? unevenness : 1);
    return { ...sample, ...(isComparable ? { offBy: Math.log(seconds / expected) } : {}) };
  });
}

function secondsAt(
  profile: ComponentProfile,
  range: Where,
  samples: readonly Measured[],
  devices: number,
  items: number,
): number {
  const measured = samples.find((sample) => sample.devices === devices && sample.items === items);
  if (measured !== undefined) return measured.seconds;
  const distance = (sample: ProfileSample): number =>
    Math.abs(Math.log2(sample.devices / devices)) + Math.abs(Math.log2(sample.items / items));
  if (profile.fit === null) {
    const nearest = samples.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    return (nearest.seconds * items * Math.max(1, nearest.devices / devices)) / nearest.items;
  }
  let [sum, weights] = [0, 0];
  for (const sample of samples) {
    if (sample.offBy === undefined) continue;
    const weight = 1 / distance(sample) ** 2;
    sum += weight * sample.offBy;
    weights += weight;
  }
  return fittedAt(profile, range, devices, items, range.batch) * (weights > 0 ? Math.exp(sum / weights) : 1);
}

/** `batch`: of the step that the items are of. */
function fittedAt(profile: ComponentProfile, range: Where, devices: number, items: number, batch: number): number {
  const shared = sharedOut({ devices, items }, profile.devicesPerRank, range.takenPerItem);
  const isWhole = items >= batch;
  const of = { items, wholeItems: shared.items };
  const unevenness = countsBusiest(profile, isWhole)
    ? unevennessAt(profile, shared.devices, of, range.takenPerItem)
    : 1;
  return fittedSeconds(profile, { ...shared, isWhole, batch })! * unevenness;
}

/** Of a whole batch the busiest rank counts; a fit that knows the longest item has that in it. */
const countsBusiest = ({ fit }: ComponentProfile, isWhole: boolean): boolean => isWhole && !fit?.longest;

/**
 * `fixed + sharded/devices` bytes by least squares, raised until it is nowhere below what was measured. One measurement
 * says nothing about other device counts, so it holds for all of them.
 */
export function memoryFormula(memory: ComponentProfile["memory"]): PlanNode["memory"] {
  const formula = { fixed: 0, sharded: 0, perItem: 0 };
  if (memory.length === 0) return formula;
  const counts = new Set(memory.map((m) => m.devices));
  if (counts.size > 1) {
    const x = memory.map((m) => 1 / m.devices);
    const y = memory.map((m) => m.bytesPerDevice);
    const [meanX, meanY] = [mean(x), mean(y)];
    const slope =
      x.reduce((sum, value, i) => sum + (value - meanX) * (y[i]! - meanY), 0) /
      x.reduce((sum, value) => sum + (value - meanX) ** 2, 0);
    formula.sharded = Math.min(Math.max(0, slope), meanY / meanX);
    formula.fixed = Math.max(0, meanY - formula.sharded * meanX);
  }
  const missing = memory.map((m) => m.bytesPerDevice - formula.fixed - formula.sharded / m.devices);
  formula.fixed += Math.max(0, ...missing);
  return formula;
}
