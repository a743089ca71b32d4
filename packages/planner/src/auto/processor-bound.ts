import type { DeviceSpec, Profile } from "@treadle/contracts";
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
 * and cores that it leaves idle are no help to the next.
 */
export function processorBoundOf(
  profile: Profile,
  devices: readonly DeviceSpec[],
  problem: PlanProblem,
  cost: Cost,
): number {
  const cores = sharedCores(profile, devices);
  if (cores === undefined) return 0;
  const all = workOf(profile, membersOf(cost)) / cores;
  const atLeast = (part: Cost): number => {
    if (part.schedule.op !== "temporal") return Math.max(part.step, workOf(profile, membersOf(part)) / cores);
    return part.parts.reduce((sum, each) => sum + atLeast(each), part.swap + part.swapBack);
  };
  return overlapped(problem, atLeast(cost), all);
}

function membersOf({ schedule, parts }: Cost): string[] {
  return schedule.op === "node" ? schedule.node.split("+") : parts.flatMap(membersOf);
}

function workOf({ components }: Profile, names: readonly string[]): number {
  return names.reduce((sum, name) => sum + (components[name]?.processorSeconds ?? 0), 0);
}
