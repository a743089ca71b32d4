import { type DeviceSpec, PlacementMode, TreadleError } from "@treadle/contracts";
import type { PlacementComponent, PlacementInput } from "./placement-input.ts";
import { devicesOfDegrees, rankBounds, sharesWithinNodes } from "./placement-ranks.ts";

/** Which devices each component gets, in the order of `components`, before ranks are laid over them. */
export type DeviceSets = ReadonlyMap<string, readonly DeviceSpec[]>;

/**
 * What sets of devices are called, one for each component. On several kinds of device they may be of two modes: whoever takes turns on
 * one kind runs beside those on another. A single component shares nothing, and is of any.
 */
export function modesOfSets(sets: readonly (readonly DeviceSpec[])[]): PlacementMode[] {
  const pairs = sets.flatMap((a, i) => sets.slice(i + 1).map((b) => [a, b] as const));
  if (pairs.length === 0) return [...PlacementMode.options];
  const common = pairs.map(([a, b]) => {
    const ids = new Set(a.map(({ id }) => id));
    return b.filter(({ id }) => ids.has(id)).length;
  });
  const isSame = ([a, b]: (typeof pairs)[number], i: number): boolean =>
    common[i] === a.length && common[i] === b.length;
  const isDisjoint = common.every((count) => count === 0);
  const isInTurn = pairs.every((each, i) => each[0][0]!.kind !== each[1][0]!.kind || isSame(each, i));
  const isBoth = !isDisjoint && !pairs.every(isSame);
  return [
    ...(isInTurn ? (["temporal"] as const) : []),
    ...(isDisjoint ? (["spatial"] as const) : []),
    ...(isBoth ? (["hybrid"] as const) : []),
  ];
}

/** Components that draw from the same kind of device, with all devices of that kind in cluster order. */
type Pool = {
  readonly kind: string;
  readonly devices: readonly DeviceSpec[];
  readonly components: readonly PlacementComponent[];
};

/** The kind of a component that names none. */
export function kindOf(
  component: PlacementComponent,
  input: { readonly devices: readonly DeviceSpec[]; readonly numbered?: readonly DeviceSpec[] | undefined },
): string {
  return component.deviceKind ?? (input.numbered ?? input.devices)[0]!.kind;
}

function poolsOf(input: PlacementInput): Pool[] {
  const pools = new Map<string, { devices: DeviceSpec[]; components: PlacementComponent[] }>();
  for (const component of input.components) {
    const kind = kindOf(component, input);
    const pool = pools.get(kind) ?? { devices: input.devices.filter((d) => d.kind === kind), components: [] };
    pools.set(kind, pool);
    pool.components.push(component);
    if (pool.devices.length === 0) {
      const kinds = [...new Set(input.devices.map((d) => d.kind))].map((k) => `'${k}'`).join(", ");
      throw new TreadleError(
        "placement.impossible",
        `component '${component.name}' needs a device of kind '${kind}', but this cluster has only ${kinds}; add one or change its deviceKind`,
        { details: { component: component.name, kind } },
      );
    }
  }
  return [...pools].map(([kind, pool]) => ({ kind, ...pool }));
}

/** The documented defaults of each mode when `placement.components` says nothing. */
export function defaultDeviceSets(input: PlacementInput, mode: PlacementMode): DeviceSets {
  const sets = new Map<string, readonly DeviceSpec[]>();
  for (const pool of poolsOf(input)) {
    if (mode === "temporal") for (const c of pool.components) sets.set(c.name, pool.devices);
    else if (mode === "spatial")
      splitPool(
        pool,
        pool.components.map((c) => [c]),
        sets,
      );
    else hybridPool(pool, sets);
  }
  return new Map(input.components.map((c) => [c.name, sets.get(c.name)!]));
}

/** The first component (the one that generates) owns about half of the pool; the others take turns on the rest. */
function hybridPool(pool: Pool, sets: Map<string, readonly DeviceSpec[]>): void {
  const [first, ...others] = pool.components;
  const groups = others.length === 0 ? [[first!]] : [[first!], others];
  splitPool(pool, groups, sets);
}

/**
 * Gives each group a run of devices of its own, in order, in proportion to its weight: devices go one share at a time to
 * whoever has least for its weight, earlier groups first, so they get the remainder. A group's share is the largest
 * `devicesPerRank` in it, and a group gets no more than its ranks can use.
 */
function splitPool(
  pool: Pool,
  groups: readonly (readonly PlacementComponent[])[],
  sets: Map<string, readonly DeviceSpec[]>,
): void {
  const weighted = groups.every((group) => group.length === 1);
  const wants = groups.map((group): Want => {
    const share = Math.max(...group.map((c) => c.devicesPerRank ?? 1));
    const cap = Math.max(...group.map(mostDevices));
    const fewest = Math.max(...group.map(fewestDevices));
    return { share, weight: weighted ? (group[0]!.weight ?? 1) : 1, least: Math.ceil(fewest / share) * share, cap };
  });
  const least = wants.map((want) => want.least);
  const neededDevices = least.reduce((sum, n) => sum + n, 0);
  if (layRuns(pool, wants, least) === undefined) {
    const needs = groups.map((group, i) => `'${group.map((c) => c.name).join(",")}' ${wants[i]!.least}`).join(", ");
    const borders = neededDevices <= pool.devices.length ? ", and no rank may cross a node" : "";
    throw new TreadleError(
      "placement.impossible",
      `${groups.length} disjoint sets of '${pool.kind}' devices need at least ${neededDevices} (${needs}), but this cluster has ${pool.devices.length}${borders}`,
      { details: { kind: pool.kind, neededDevices, devices: pool.devices.length } },
    );
  }
  const usable = sharesWithinNodes(pool.devices, greatestCommonDivisor(wants.map((want) => want.share))).flat().length;
  const bySum = (counts: readonly number[]): boolean => counts.reduce((sum, n) => sum + n, 0) <= usable;
  const byLayout = (counts: readonly number[]): boolean => layRuns(pool, wants, counts) !== undefined;
  // Counting alone is enough unless shares meet the borders of nodes, where every step has to be laid out.
  const counted = grow(wants, bySum);
  const runs = layRuns(pool, wants, counted) ?? layRuns(pool, wants, grow(wants, byLayout))!;
  for (const [i, group] of groups.entries()) for (const component of group) sets.set(component.name, runs[i]!);
}

type Want = { readonly share: number; readonly weight: number; readonly least: number; readonly cap: number };

/** Hands out shares from the least on, each to whoever has fewest devices for its weight, as long as they fit. */
function grow(wants: readonly Want[], fit: (counts: readonly number[]) => boolean): number[] {
  const counts = wants.map((want) => want.least);
  const open = new Set(wants.keys());
  while (open.size > 0) {
    let next = -1;
    for (const i of open) {
      if (next < 0 || counts[i]! / wants[i]!.weight < counts[next]! / wants[next]!.weight) next = i;
    }
    const { share, cap } = wants[next]!;
    counts[next]! += share;
    if (counts[next]! > cap || !fit(counts)) {
      counts[next]! -= share;
      open.delete(next);
    }
  }
  return counts;
}

function greatestCommonDivisor(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => {
    while (b > 0) [a, b] = [b, a % b];
    return a;
  });
}

/** Ranks without a size share out whatever there is. */
function mostDevices(component: PlacementComponent): number {
  const { devicesPerRank } = component;
  return (
    devicesOfDegrees(component) ??
    (devicesPerRank === undefined ? Infinity : rankBounds(component).max * devicesPerRank)
  );
}

/** Ranks of one device may stack on it; wider ones each need devices of their own. */
function fewestDevices(component: PlacementComponent): number {
  const { devicesPerRank = 1 } = component;
  const listed = devicesOfDegrees(component);
  if (listed !== undefined) return listed;
  return devicesPerRank === 1 ? 1 : rankBounds(component).min * devicesPerRank;
}

/** Disjoint runs in order, each of whole shares within nodes; undefined where the nodes' borders leave too little. */
function layRuns(pool: Pool, wants: readonly Want[], counts: readonly number[]): DeviceSpec[][] | undefined {
  const runs: DeviceSpec[][] = [];
  let rest = pool.devices;
  for (let i = 0; i < counts.length; i++) {
    const { share } = wants[i]!;
    const shares = sharesWithinNodes(rest, share).slice(0, counts[i]! / share);
    if (shares.length * share < counts[i]!) return undefined;
    runs.push(shares.flat());
    rest = rest.slice(rest.indexOf(runs[i]!.at(-1)!) + 1);
  }
  return runs;
}
