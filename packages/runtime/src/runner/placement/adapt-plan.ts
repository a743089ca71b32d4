/**
 * What becomes of a plan when nodes have come, gone, or want to leave. Pure.
 *
 * AD1 every rank is on devices that are there, unless there is no place for it, or no plan at all.
 * AD2 a component that is not elastic keeps its number of ranks, and those of its ranks whose devices are there stay where
 *    they are, unless the mode has everybody take turns on everything, or nothing else is possible.
 * AD3 an elastic component has as many ranks as the devices that others leave allow, within its bounds.
 */
import { type DeviceSpec, type Plan, type RankPlacement, TreadleError } from "@treadle/contracts";
import { relocate } from "@treadle/core";
import { type PlacementInput, resolvePlacement } from "@treadle/planner";
import type { PlacementFacts, PlannedChange } from "./placement-facts.ts";

type Ranks = readonly RankPlacement[];
type Placed = Readonly<Record<string, { readonly ranks: Ranks }>>;

export type AdaptInput = {
  /** with every rank where it is now */
  readonly current: Plan;
  /** of the devices that are there and stay; with the bounds of elastic components */
  readonly facts: PlacementFacts;
  readonly elastic: ReadonlySet<string>;
};

/** Undefined when the plan is as it should be. Throws `placement.impossible` when elastic components cannot have their least. */
export function adaptPlan({ current, facts, elastic }: AdaptInput): PlannedChange | undefined {
  if (facts.devices.length === 0) return undefined;
  const stays = moveAway(current.components, facts.devices);
  const planned =
    elastic.size === 0 ? { ...current, components: copyOf(stays) } : resize(current, stays, facts, elastic);
  if (isSame(planned.components, current.components)) return undefined;
  const nodes = [...new Set(facts.devices.map(({ node }) => node))].map((node) => `'${node}'`).join(", ");
  return { plan: planned, why: [`adapted to the nodes that are there: ${nodes}`] };
}

/** Makes room for nobody without devices: those ranks stay (AD2). */
function resize(current: Plan, stays: Placed, facts: PlacementFacts, elastic: ReadonlySet<string>): Plan {
  const { mode } = current;
  const components = facts.components.map((component) =>
    elastic.has(component.name)
      ? component
      : { ...component, ranks: { fixed: stays[component.name]?.ranks.length ?? 1 } },
  );
  const planned = resizeOnDevices({ ...facts, mode, components }, stays, elastic);
  const without = components.filter(({ devices }) => devices !== undefined).map(({ name }) => name);
  const kept = Object.entries(stays).filter(([name]) => without.includes(name));
  return { ...planned, components: { ...planned.components, ...copyOf(Object.fromEntries(kept)) } };
}

function resizeOnDevices(anew: PlacementInput, stays: Placed, elastic: ReadonlySet<string>): Plan {
  const { mode, components, devices } = anew;
  if (mode === "temporal" || anew.explicit !== undefined) return resolvePlacement(anew);
  try {
    const placed = components.filter((component) => component.devices === undefined);
    const held = new Set(placed.flatMap(({ name }) => (elastic.has(name) ? [] : devicesOf(stays[name]?.ranks ?? []))));
    const free = devices.filter(({ id }) => !held.has(id));
    const growing = placed.filter(({ name }) => elastic.has(name));
    const { nodeGroups: _, ...others } = anew;
    const grown = resolvePlacement({ ...others, components: growing, devices: free }).components;
    const explicit = Object.fromEntries(
      placed.map(({ name }) => [name, numbersOf((grown[name] ?? stays[name])?.ranks ?? [], devices)]),
    );
    return resolvePlacement({ ...anew, explicit });
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    return resolvePlacement(anew); // AD2: everybody makes room
  }
}

/** AD1, for ranks whose devices are not there any more. */
function moveAway(components: Placed, devices: readonly DeviceSpec[]): Placed {
  const present = new Set(devices.map(({ id }) => id));
  const nodes = new Set(devices.map(({ node }) => node));
  const isThere = (rank: RankPlacement) =>
    rank.devices.length === 0 ? nodes.has(rank.node) : rank.devices.every((id) => present.has(id));
  const taken = new Map<string, number>();
  const take = (rank: RankPlacement) => {
    for (const id of rank.devices) taken.set(id, (taken.get(id) ?? 0) + 1);
  };
  for (const { ranks } of Object.values(components)) for (const rank of ranks.filter(isThere)) take(rank);
  return Object.fromEntries(
    Object.entries(components).map(([name, { ranks }]) => [
      name,
      {
        ranks: ranks.map((rank) => {
          if (isThere(rank)) return rank;
          const place = relocate(rank.devices, devices, (device) => taken.get(device) ?? 0);
          const moved = place === undefined ? rank : { node: place.node, devices: [...place.devices] };
          take(moved);
          return moved;
        }),
      },
    ]),
  );
}

const devicesOf = (ranks: Ranks): string[] => ranks.flatMap(({ devices }) => devices);

/** Devices as placement expressions name them. */
function numbersOf(ranks: Ranks, devices: readonly DeviceSpec[]): string {
  const ids = new Set(devicesOf(ranks));
  return devices
    .filter(({ id }) => ids.has(id))
    .map(({ index }) => index)
    .sort((a, b) => a - b)
    .join(",");
}

const copyOf = (components: Placed): Plan["components"] =>
  Object.fromEntries(Object.entries(components).map(([name, { ranks }]) => [name, { ranks: [...ranks] }]));

function isSame(a: Placed, b: Placed): boolean {
  const text = (components: Placed) =>
    JSON.stringify(
      Object.entries(components)
        .sort(([one], [other]) => (one < other ? -1 : 1))
        .map(([name, { ranks }]) => [name, ranks.map(({ node, devices }) => [node, devices])]),
    );
  return text(a) === text(b);
}
