/**
 * What becomes of a plan when nodes have come, gone, or want to leave. Pure.
 *
 * AD1 every rank is on devices that are there, unless there is no place for it, or no plan at all.
 * AD2 a component that is not elastic keeps its number of ranks, and those of its ranks whose devices are there stay where
 *    they are, unless the mode has everybody take turns on everything, or nothing else is possible.
 * AD3 an elastic component has as many ranks as the devices that others leave allow, within its bounds.
 * AD4 devices that must stay free do, no component gets more ranks than it may have, and none that was apart from another
 *    shares a device with it: where nothing else is left, a rank stays where it was.
 * AD5 what else `placement.wishes` wants is kept where that is possible; of what is not, the change says so.
 */
import { type DeviceSpec, type Plan, type RankPlacement, TreadleError } from "@treadle/contracts";
import { relocate } from "@treadle/core";
import { brokenWishes, type PlacementInput, resolvePlacement, withWishes } from "@treadle/planner";
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

/**
 * Undefined when the plan is as it should be. Throws `placement.impossible` when elastic components cannot have their least,
 * and `placement.invalid` when all devices that are there must stay free.
 */
export function adaptPlan({ current, facts: given, elastic }: AdaptInput): PlannedChange | undefined {
  if (given.devices.length === 0) return undefined;
  const facts = withWishes(given);
  const stays = moveAway(current.components, { ...facts, present: given.devices });
  const planned = elastic.size === 0 ? relaid(current, stays, facts) : resized(current, stays, facts, elastic);
  if (isSame(planned.components, current.components)) return undefined;
  const nodes = [...new Set(given.devices.map(({ node }) => node))].map((node) => `'${node}'`).join(", ");
  const missed = missedBy(planned, facts).map(
    (problem) => `placement.wishes is not kept on the nodes that are left: ${problem}`,
  );
  return { plan: planned, why: [`adapted to the nodes that are there: ${nodes}`, ...missed] };
}

/** AD5: laid out by its mode where moving lost ranks alone breaks a wish, if that keeps all. */
function relaid(current: Plan, stays: Placed, facts: PlacementFacts): Plan {
  const moved = { ...current, components: copyOf(stays) };
  if (missedBy(moved, facts).length === 0) return moved;
  try {
    return { ...moved, ...placesOf(resize(current, stays, facts, new Set())) };
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    return moved;
  }
}

/** A sentence each; ranks that moved may take turns in a plan that was spatial. */
function missedBy(plan: Plan, { wishes, devices }: PlacementFacts): string[] {
  const held = Object.values(plan.components).map(({ ranks }) => [...new Set(devicesOf(ranks))]);
  const sharing = plan.mode === "spatial" && held.flat().length > new Set(held.flat()).size;
  const isWanted = wishes?.modes === undefined || wishes.modes.includes("hybrid");
  return [
    ...brokenWishes(plan, wishes, devices),
    ...(sharing && !isWanted ? ["components of a spatial plan share devices, and hybrid ones are not wanted"] : []),
  ];
}

const placesOf = ({ components, sharing }: Plan): Pick<Plan, "components" | "sharing"> => ({ components, sharing });

/** AD5: without the wishes that no layout keeps. */
function resized(current: Plan, stays: Placed, facts: PlacementFacts, elastic: ReadonlySet<string>): Plan {
  try {
    return resize(current, stays, facts, elastic);
  } catch (error) {
    const { apart, ...others } = facts.wishes ?? {};
    if (!(error instanceof TreadleError) || Object.keys(others).length === 0) throw error;
    return resize(current, stays, { ...facts, wishes: apart === undefined ? {} : { apart } }, elastic);
  }
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
  if (mode === "temporal" || anew.explicit !== undefined || elastic.size === 0) return resolvePlacement(anew);
  try {
    const placed = components.filter((component) => component.devices === undefined);
    const held = new Set(placed.flatMap(({ name }) => (elastic.has(name) ? [] : devicesOf(stays[name]?.ranks ?? []))));
    const free = devices.filter(({ id }) => !held.has(id));
    const growing = placed.filter(({ name }) => elastic.has(name));
    const { nodeGroups: _, numbered: _all, wishes: _of, ...others } = anew; // of those that grow alone; judged with the others
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

type There = Pick<PlacementFacts, "devices" | "wishes"> & {
  /** with those that must stay free */
  readonly present: readonly DeviceSpec[];
};

/** AD1, AD4, for ranks whose devices are not there any more. */
function moveAway(components: Placed, { devices, present, wishes }: There): Placed {
  const usable = new Set(devices.map(({ id }) => id));
  const nodes = new Set(present.map(({ node }) => node));
  const isThere = (rank: RankPlacement) =>
    rank.devices.length === 0 ? nodes.has(rank.node) : rank.devices.every((id) => usable.has(id));
  const taken = new Map<string, number>();
  const take = (rank: RankPlacement) => {
    for (const id of rank.devices) taken.set(id, (taken.get(id) ?? 0) + 1);
  };
  for (const { ranks } of Object.values(components)) for (const rank of ranks.filter(isThere)) take(rank);
  const apart = apartIn(components, wishes?.apart ?? []);
  // A rank that has not moved yet may find no place, and keep those of its devices that are there.
  const now = new Map(Object.entries(components).map(([name, { ranks }]) => [name, [...ranks]]));
  const isOpen = (name: string, id: string) =>
    ![...now].some(([other, ranks]) => apart(name, other) && devicesOf(ranks).includes(id));
  for (const [name, ranks] of now) {
    for (const [i, rank] of ranks.entries()) {
      if (isThere(rank)) continue;
      const open = rank.devices.length === 0 ? present : devices.filter(({ id }) => isOpen(name, id));
      const place = relocate(rank.devices, open, (device) => taken.get(device) ?? 0);
      if (place !== undefined) ranks[i] = { node: place.node, devices: [...place.devices] };
      take(ranks[i] as RankPlacement);
    }
  }
  return Object.fromEntries([...now].map(([name, ranks]) => [name, { ranks }]));
}

/** Components that take turns although they are to be apart, as while they are measured, may go on to do so. */
function apartIn(components: Placed, groups: readonly (readonly string[])[]): (a: string, b: string) => boolean {
  const held = (name: string) => new Set(devicesOf(components[name]?.ranks ?? []));
  return (a, b) =>
    a !== b &&
    groups.some((group) => group.includes(a) && group.includes(b)) &&
    ![...held(a)].some((id) => held(b).has(id));
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
