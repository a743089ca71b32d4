import type { Plan } from "@treadle/contracts";
import { withoutSlots } from "../placement-slots.ts";
import type { ComponentLayout } from "./step-samples.ts";

/** How steps run under a plan, as far as their cost depends on it. */
export type RunningLayout = {
  readonly mode: Plan["mode"];
  readonly granularity: Plan["granularity"]["default"];
  /** devices in use, over all components */
  readonly devices: number;
  readonly components: ReadonlyMap<string, ComponentLayout>;
  /** the same for plans that do the same */
  readonly name: string;
  /** that runs so */
  readonly plan?: Plan | undefined;
};

/** What runs without devices counts as one for each rank. */
export function layoutOf(given: Plan): RunningLayout {
  const plan = withoutSlots(given);
  const all = new Set<string>();
  const components = new Map<string, ComponentLayout>();
  for (const [component, { ranks }] of Object.entries(plan.components)) {
    const own = new Set(ranks.flatMap((rank) => rank.devices));
    for (const device of own) all.add(device);
    const isOnProcessors = [...own].every((device) => /(^|\/)cpu:/.test(device));
    components.set(component, { devices: own.size || ranks.length, ranks: ranks.length, isOnProcessors });
  }
  const { mode, granularity } = plan;
  return { mode, granularity: granularity.default, devices: all.size, components, name: nameOf(plan), plan };
}

/**
 * Devices that count: a process computes on one core however many slots its rank has, while an engine on accelerators may
 * use all that it is given.
 */
export function usedBy({ devices, ranks, isOnProcessors }: ComponentLayout, devicesPerRank: number): number {
  return isOnProcessors ? Math.min(devices, ranks * devicesPerRank) : devices;
}

function nameOf({ components, granularity, capacity = {} }: Plan): string {
  const placed = Object.entries(components)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([component, { ranks }]) => `${component} ${ranks.map(({ devices }) => devices.join("+")).join(" ")}`);
  const chunks = Object.entries(granularity.channels)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([channel, items]) => `${channel} ${items}`);
  const bounded = Object.entries(capacity)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([channel, items]) => `${channel} at most ${items}`);
  return [...placed, [granularity.default, ...chunks, ...bounded].join(" ")].join("; ");
}
