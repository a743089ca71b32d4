import type { DeviceSpec, Profile } from "@treadle/contracts";
import { leastSeconds, usedDevices } from "../plan/component-time.ts";
import { type Cost, overlapped } from "../plan/evaluate.ts";
import type { PlanProblem } from "../plan/problem.ts";

/** Cores behind the slots of a machine that has more slots than cores; components that run at once wait for one another. */
export function sharedCores({ hardware }: Profile, devices: readonly DeviceSpec[]): number | undefined {
  const { coresPerSlot } = hardware;
  const slots = devices.filter(({ kind }) => kind === "cpu").length;
  if (coresPerSlot === undefined || coresPerSlot >= 1 || slots === 0) return undefined;
  return Math.max(1, slots * coresPerSlot);
}

/**
 * Seconds that the processors need at least for a step's work, whoever runs beside whom, which a schedule of slots does
 * not see. 0 where slots are cores, or nothing is known.
 */
export function processorBoundSeconds(profile: Profile, devices: readonly DeviceSpec[]): number {
  const cores = sharedCores(profile, devices);
  return cores === undefined ? 0 : workOf(profile, Object.keys(profile.components)) / cores;
}

/**
 * The same for one schedule: what takes turns does not run at once, so each turn needs the processors for its own work,
 * and cores that it leaves idle are no help to the next. What chunks cost besides their items is work too.
 */
export function processorBoundOf(
  profile: Profile,
  devices: readonly DeviceSpec[],
  problem: PlanProblem,
  cost: Cost,
): number {
  const cores = sharedCores(profile, devices);
  if (cores === undefined) return 0;
  const work = (part: Cost): number => workInChunks(profile, problem, part) / cores;
  const atLeast = (part: Cost): number => {
    if (part.schedule.op !== "temporal") return Math.max(part.step, work(part));
    return part.parts.reduce((sum, each) => sum + atLeast(each), part.swap + part.swapBack);
  };
  return overlapped(problem, atLeast(cost), work(cost));
}

/** Processor seconds are known of whole batches; in chunks they grow as the seconds of the ranks that are busy do. */
function workInChunks(profile: Profile, problem: PlanProblem, { schedule, parts, step }: Cost): number {
  if (schedule.op !== "node") return parts.reduce((sum, part) => sum + workInChunks(profile, problem, part), 0);
  const { batch } = problem;
  const { devices, items } = schedule;
  const names = schedule.node.split("+");
  const whole = workOf(profile, names);
  if (items === batch) return whole;
  const members = problem.nodes.filter(({ id }) => names.includes(id));
  const limits = { batch, memoryPerDevice: Number.POSITIVE_INFINITY };
  const wholeStep = leastSeconds(members, devices, batch, limits);
  const ranks = Math.max(...members.map((node) => usedDevices(node, devices) / node.unit));
  const busySeconds = (seconds: number, taken: number): number => seconds * Math.max(1, Math.min(ranks, taken));
  const growth = ((batch / items) * busySeconds(step, items)) / busySeconds(wholeStep, batch);
  return whole * Math.max(1, growth);
}

function workOf({ components }: Profile, names: readonly string[]): number {
  return names.reduce((sum, name) => sum + (components[name]?.processorSeconds ?? 0), 0);
}
