/** Devices of a schedule's parts, moved as long as a step gets shorter. Pure. */
import type { DeviceSpec, FlowGraph, PlacementWishes, Profile } from "@treadle/contracts";
import { exactSeconds, mostDevices, usedDevices } from "../plan/component-time.ts";
import { joinedGroups } from "../wishes.ts";
import { descend, type Judging, type Trying } from "./descent.ts";
import type { ProfileProblem } from "./profile-problem.ts";
import type { Share } from "./schedule-placement.ts";

/** Components that move as one, over the devices of their pool. */
export type Mover = {
  readonly components: readonly string[];
  /** in the order in which runs of them are taken */
  readonly devices: readonly DeviceSpec[];
  /** devices of a rank */
  readonly unit: number;
  readonly leastDevices: number;
  readonly mostDevices: number;
  /** that it computes in a step, on so many devices; it takes no less */
  readonly secondsOn: (devices: number) => number;
};

/** The devices of a mover, counted in its pool: `count` from `start` on. */
type Run = { readonly start: number; readonly count: number };

/**
 * A search lays the parts of a schedule side by side, each turn from the first device on, and counts swaps as if a turn's
 * components were on all of its devices. Which part is beside which then decides what is swapped, and components that share
 * devices may leave others to one between them. One mover after the other gets the run of devices that makes a step
 * shortest, or changes places with another, until nobody gains.
 */
export function movedShares<L extends { readonly shares: readonly Share[] }>(
  first: L,
  movers: readonly Mover[],
  judging: Judging<readonly Share[], L>,
): L {
  const moveEachOnce = (trying: Trying<readonly Share[]>): void => {
    for (const [i, mover] of movers.entries()) {
      const shares = trying.best;
      for (const run of runsFor(mover, movers, shares)) trying.tryOne(withRun(shares, mover, run));
      for (const other of movers.slice(i + 1)) {
        if (mover.devices !== other.devices) continue;
        const [own, others] = [runOf(mover, trying.best), runOf(other, trying.best)];
        trying.tryOne(withRun(withRun(trying.best, mover, others), other, own));
      }
    }
  };
  const leastSecondsOf = (shares: readonly Share[]) => busiestSeconds(movers, shares);
  return descend({ choice: first.shares, layout: first }, judging, keyOf, moveEachOnce, leastSecondsOf).layout;
}

/** Of the device that computes most; a step takes no less. */
function busiestSeconds(movers: readonly Mover[], shares: readonly Share[]): number {
  const seconds = new Map<string, number>();
  for (const mover of movers) {
    const { start, count } = runOf(mover, shares);
    const own = mover.secondsOn(count);
    for (const { id } of mover.devices.slice(start, start + count)) seconds.set(id, (seconds.get(id) ?? 0) + own);
  }
  return Math.max(...seconds.values());
}

const keyOf = (shares: readonly Share[]): string =>
  shares.map(({ component, devices }) => `${component} ${devices.map(({ id }) => id).join(" ")}`).join("\n");

function runOf({ components: [name], devices }: Mover, shares: readonly Share[]): Run {
  const own = shares.find(({ component }) => component === name)!.devices;
  return { start: devices.indexOf(own[0]!), count: own.length };
}

/** As many devices as now, a rank more or less, or as many as another has; beside the others, or from where one begins. */
function runsFor(mover: Mover, movers: readonly Mover[], shares: readonly Share[]): Run[] {
  const { length } = mover.devices;
  const own = runOf(mover, shares);
  const others = movers.filter((each) => each !== mover && each.devices === mover.devices);
  const runs = others.map((each) => runOf(each, shares));
  const counts = [own.count, own.count - mover.unit, own.count + mover.unit, ...runs.map(({ count }) => count), length]
    .map((count) => Math.floor(Math.min(count, mover.mostDevices) / mover.unit) * mover.unit)
    .filter((count, i, all) => count > 0 && count >= mover.leastDevices && all.indexOf(count) === i);
  const bounds = [0, length, own.start, ...runs.flatMap(({ start, count }) => [start, start + count])];
  return counts.flatMap((count) =>
    [...new Set(bounds.flatMap((bound) => [bound, bound - count]))]
      .filter((start) => start >= 0 && start + count <= length)
      .map((start) => ({ start, count })),
  );
}

const withRun = (shares: readonly Share[], { components, devices }: Mover, { start, count }: Run): Share[] =>
  shares.map((share) =>
    components.includes(share.component) ? { ...share, devices: devices.slice(start, start + count) } : share,
  );

/** What may move. Members of a cycle stay: on each other's devices they would wait for each other. */
export function moversOf(
  { problem: { nodes, batch }, pools }: Pick<ProfileProblem, "problem" | "pools">,
  { cycles }: FlowGraph,
  wishes: PlacementWishes | undefined,
): Mover[] {
  const limits = { batch, memoryPerDevice: Number.POSITIVE_INFINITY };
  const groups = joinedGroups(wishes?.together ?? []);
  return pools
    .filter(({ shared }) => !shared)
    .flatMap(({ components, devices }) => {
      const alone = components.filter((name) => !groups.some((group) => group.has(name)));
      const together = groups.filter((group) => components.some((name) => group.has(name)));
      return [...together, ...alone.map((name) => new Set([name]))]
        .filter((names) => !cycles.flat().some((name) => names.has(name)))
        .map((names): Mover => {
          const own = nodes.filter(({ id }) => names.has(id));
          return {
            components: [...names],
            devices,
            unit: Math.max(...own.map(({ unit }) => unit)),
            leastDevices: Math.max(...own.map(({ minDevices }) => minDevices)),
            mostDevices: Math.max(...own.map(mostDevices)),
            secondsOn: (count) => exactSeconds(own, count, batch, limits),
          };
        });
    });
}

/**
 * What a step of `stepItems` takes at least, wherever its components are: each has its own work, and devices of a pool share that of theirs.
 * What was measured is what the busiest rank took, which the others do not wait for everywhere.
 */
export function leastWorkSeconds(
  { problem: { nodes, batch }, pools }: Pick<ProfileProblem, "problem" | "pools">,
  { components }: Pick<Profile, "components">,
  stepItems: number,
): number {
  const samples = Object.values(components).flatMap((component) => component.samples);
  const unevenness = Math.max(1, ...samples.map((sample) => sample.unevenness ?? 1));
  const limits = { batch, memoryPerDevice: Number.POSITIVE_INFINITY };
  const ofPools = pools.map(({ components, devices: { length } }) => {
    const own = nodes.filter(({ id }) => components.includes(id));
    const work = own.map((node) => {
      const seconds = Array.from({ length }, (_, i) => exactSeconds([node], i + 1, batch, limits));
      return {
        least: Math.min(...seconds),
        onDevices: Math.min(...seconds.map((each, i) => each * Math.max(1, usedDevices(node, i + 1)))),
      };
    });
    return Math.max(
      ...work.map(({ least }) => least),
      work.reduce((sum, { onDevices }) => sum + onDevices, 0) / length,
    );
  });
  return (Math.min(1, stepItems / batch) / unevenness) * Math.max(0, ...ofPools);
}
