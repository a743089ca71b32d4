import { type DeviceSpec, type RankPlacement, TreadleError } from "@treadle/contracts";
import { formatDeviceNumbers } from "./placement-grammar.ts";
import type { PlacementComponent } from "./placement-input.ts";

/** What an expression asks for beyond what the component itself says. */
export type RankRequest = { readonly devicesPerRank?: number | undefined; readonly ranksPerShare?: number | undefined };

export type RankLayout = { readonly ranks: RankPlacement[]; readonly notes: string[] };

/** Devices of all ranks, where a component says how many each of them spans. */
export const devicesOfDegrees = ({ degrees }: PlacementComponent): number | undefined =>
  degrees?.reduce((sum, degree) => sum + degree, 0);

/** Throws `placement.impossible` for ranks of different sizes, of which no profile says what steps cost. */
export function refuseDegrees(components: readonly PlacementComponent[]): void {
  const listed = components.find(({ degrees }) => degrees !== undefined);
  if (listed?.degrees === undefined) return;
  throw new TreadleError(
    "placement.impossible",
    `placement.mode 'auto' measures ranks of one size, and component '${listed.name}' has ranks of '${listed.degrees.join(", ")}' devices; choose the mode 'temporal', 'spatial' or 'hybrid', or leave the sizes of its ranks to 'auto'`,
    { details: { component: listed.name, degrees: listed.degrees } },
  );
}

/** Fewest and most ranks a component accepts; `fixed` is both. */
export function rankBounds(component: PlacementComponent): { min: number; max: number } {
  const { min = 1, max = Number.POSITIVE_INFINITY, fixed } = component.ranks ?? {};
  if (fixed !== undefined) return { min: fixed, max: fixed };
  if (min > max) {
    throw new TreadleError(
      "placement.invalid",
      `component '${component.name}': ranks.min '${min}' is above ranks.max '${max}'`,
    );
  }
  return { min, max };
}

/** Cuts devices, in their order, into shares of `size` that never cross a node; what a node has left over is dropped. */
export function sharesWithinNodes(devices: readonly DeviceSpec[], size: number): DeviceSpec[][] {
  const shares: DeviceSpec[][] = [];
  let open: DeviceSpec[] = [];
  for (const device of devices) {
    if (open[0] !== undefined && open[0].node !== device.node) open = [];
    open.push(device);
    if (open.length === size) {
      shares.push(open);
      open = [];
    }
  }
  return shares;
}

/**
 * Lays a component's ranks over its devices: as many as it says how many devices they span (`degrees`), else equal ones.
 * Every device that stays idle is named in the notes.
 */
export function layRanks(
  component: PlacementComponent,
  devices: readonly DeviceSpec[],
  request: RankRequest = {},
): RankLayout {
  const { degrees, name } = component;
  const laid = degrees ? layDegrees(component, degrees, devices, request) : layEqual(component, devices, request);
  const { ranks } = laid;
  const used = new Set(ranks.flatMap((rank) => rank.devices));
  const idle = devices.filter((d) => !used.has(d.id)).map(({ id }) => id);
  const sizes = degrees?.join(", ") ?? ranks[0]!.devices.length;
  const note = `'${name}' leaves ${idle.join(", ")} idle: ${ranks.length} ranks of ${sizes} devices do not fill its ${devices.length}`;
  checkMemory(component, devices, ranks);
  return { ranks, notes: [...(idle.length > 0 ? [note] : []), ...laid.notes] };
}

/** A rank of each degree, within a node: the largest first, on the first node that has as many devices left. */
function layDegrees(
  { name, ...component }: PlacementComponent,
  degrees: readonly number[],
  devices: readonly DeviceSpec[],
  { devicesPerRank, ranksPerShare }: RankRequest,
): RankLayout {
  const listed = `component '${name}' has ranks of '${degrees.join(", ")}' devices`;
  const impossible = (problem: string) =>
    new TreadleError("placement.impossible", `${listed}, ${problem}`, { details: { component: name, degrees } });
  if (devicesPerRank !== undefined || ranksPerShare !== undefined)
    throw impossible(
      `and placement.components says how many devices its ranks have, too; write its devices alone there`,
    );
  const { min, max } = rankBounds({ name, ...component });
  if (degrees.length < min || degrees.length > max)
    throw impossible(
      `which are ${degrees.length} ranks, but it allows ${allowedRanks(min, max)}; list as many, or change its ranks`,
    );
  const wanted = degrees.reduce((sum, degree) => sum + degree, 0);
  if (wanted > devices.length)
    throw impossible(
      `which are ${wanted}, but it is given ${devices.length} (${formatDeviceNumbers(devices.map((d) => d.index))}); list fewer or smaller ones, or give it more devices`,
    );
  const left = [...new Set(devices.map(({ node }) => node))].map((node) => devices.filter((d) => d.node === node));
  const ranks: RankPlacement[] = [];
  for (const rank of [...degrees.keys()].sort((a, b) => degrees[b]! - degrees[a]! || a - b)) {
    const degree = degrees[rank]!;
    const free = left.find(({ length }) => length >= degree);
    if (free === undefined)
      throw impossible(
        `and no node has the ${degree} left of rank ${rank} once larger ones have theirs: its nodes have ${left.map(({ length }) => length).join(", ")} left; list ones that fit, as a rank is on one node`,
      );
    const own = free.splice(0, degree);
    ranks[rank] = { devices: own.map((d) => d.id), node: own[0]!.node };
  }
  return { ranks, notes: [] };
}

const allowedRanks = (min: number, max: number): string =>
  min === max ? `exactly ${min}` : max === Number.POSITIVE_INFINITY ? `at least ${min}` : `${min} to ${max}`;

/**
 * One rank a share, where a share is `devicesPerRank` devices of one node (1 by default). With more shares than ranks
 * allowed, `max` ranks get an equal run of devices each, unless `devicesPerRank` is fixed; such a run may cross nodes,
 * and its process lives on the node of its first device. With fewer shares than ranks required, ranks of one
 * device stack evenly.
 */
function layEqual(component: PlacementComponent, devices: readonly DeviceSpec[], request: RankRequest): RankLayout {
  const { name } = component;
  const { min, max } = rankBounds(component);
  const fixedSize = request.devicesPerRank ?? component.devicesPerRank;
  if (component.devicesPerRank !== undefined && fixedSize !== component.devicesPerRank) {
    throw new TreadleError(
      "placement.impossible",
      `component '${name}' spans ${component.devicesPerRank} devices a rank, not '${fixedSize}'; write '/${component.devicesPerRank}' or leave it out`,
    );
  }
  let shares = sharesWithinNodes(devices, fixedSize ?? 1);
  if (shares.length === 0) {
    throw new TreadleError(
      "placement.impossible",
      `component '${name}' needs ${fixedSize ?? 1} devices on one node, and devices ${formatDeviceNumbers(devices.map((d) => d.index))} have no such run`,
      { details: { component: name, devicesPerRank: fixedSize ?? 1 } },
    );
  }
  const notes: string[] = [];
  const mayStack = (fixedSize ?? 1) === 1;
  let count = shares.length;
  if (request.ranksPerShare !== undefined) count *= request.ranksPerShare;
  else if (mayStack) count = Math.max(count, min);

  if (count > max && request.ranksPerShare === undefined && request.devicesPerRank === undefined) {
    const size = fixedSize ?? Math.floor(devices.length / max);
    shares =
      fixedSize === undefined
        ? Array.from({ length: max }, (_, rank) => devices.slice(rank * size, (rank + 1) * size))
        : shares.slice(0, max);
    count = max;
  }
  if (count < min || count > max) {
    throw new TreadleError(
      "placement.impossible",
      `component '${name}' would have ${count} ranks, but it allows ${allowedRanks(min, max)}; change its placement or its ranks`,
      { details: { component: name, ranks: count, min, max: max === Number.POSITIVE_INFINITY ? null : max } },
    );
  }
  const stacked = count > shares.length;
  const ranks = Array.from({ length: count }, (_, rank): RankPlacement => {
    const share = shares[stacked ? Math.floor((rank * shares.length) / count) : rank]!;
    return { devices: share.map((d) => d.id), node: share[0]!.node };
  });

  if (stacked)
    notes.push(
      `'${name}' stacks ${count} ranks on ${shares.length} ${shares.length === 1 ? "share" : "shares"} of devices`,
    );
  const crossing = shares.findIndex((share) => share.some((d) => d.node !== share[0]!.node));
  if (crossing >= 0) {
    notes.push(
      `rank ${crossing} of '${name}' holds devices of several nodes; its process runs on '${shares[crossing]![0]!.node}'`,
    );
  }
  return { ranks, notes };
}

/** A component that does not fit when it is alone cannot be helped by taking turns. */
function checkMemory(
  component: PlacementComponent,
  devices: readonly DeviceSpec[],
  ranks: readonly RankPlacement[],
): void {
  const perRank = component.memoryBytesPerDevice;
  if (perRank === undefined) return;
  const ranksOn = new Map<string, number>();
  for (const id of ranks.flatMap((rank) => rank.devices)) ranksOn.set(id, (ranksOn.get(id) ?? 0) + 1);
  for (const device of devices) {
    const count = ranksOn.get(device.id) ?? 0;
    const missing = count * perRank - device.memoryBytes;
    if (missing <= 0) continue;
    const stacking = count > 1 ? ` for its ${count} ranks there` : "";
    throw new TreadleError(
      "placement.impossible",
      `component '${component.name}' needs ${formatBytes(count * perRank)}${stacking} on '${device.id}', which has ${formatBytes(device.memoryBytes)}: ${formatBytes(missing)} too little even when it is alone; use ${count > 1 ? "fewer ranks a device or " : ""}a larger device or a smaller model`,
      {
        details: { component: component.name, device: device.id, neededBytes: count * perRank, missingBytes: missing },
      },
    );
  }
}

export function formatBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${Number(value.toFixed(value < 10 ? 2 : 1))} ${units[unit]}`;
}
