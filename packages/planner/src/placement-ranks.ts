import { type DeviceSpec, type RankPlacement, TreadleError } from "@treadle/contracts";
import { formatDeviceNumbers } from "./placement-grammar.ts";
import type { PlacementComponent } from "./placement-input.ts";

/** What an expression asks for beyond what the component itself says. */
export type RankRequest = { readonly devicesPerRank?: number | undefined; readonly ranksPerShare?: number | undefined };

export type RankLayout = { readonly ranks: RankPlacement[]; readonly notes: string[] };

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
 * Lays a component's ranks over its devices.
 *
 * One rank a share, where a share is `devicesPerRank` devices of one node (1 by default). With more shares than ranks
 * allowed, `max` ranks get an equal run of devices each, unless `devicesPerRank` is fixed; such a run may cross nodes,
 * and its process lives on the node of its first device. With fewer shares than ranks required, ranks of one
 * device stack evenly.
 * Every device that stays idle is named in the notes.
 */
export function layRanks(
  component: PlacementComponent,
  devices: readonly DeviceSpec[],
  request: RankRequest = {},
): RankLayout {
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
    const allowed =
      min === max ? `exactly ${min}` : max === Number.POSITIVE_INFINITY ? `at least ${min}` : `${min} to ${max}`;
    throw new TreadleError(
      "placement.impossible",
      `component '${name}' would have ${count} ranks, but it allows ${allowed}; change its placement or its ranks`,
      { details: { component: name, ranks: count, min, max: max === Number.POSITIVE_INFINITY ? null : max } },
    );
  }
  const stacked = count > shares.length;
  const ranks = Array.from({ length: count }, (_, rank): RankPlacement => {
    const share = shares[stacked ? Math.floor((rank * shares.length) / count) : rank]!;
    return { devices: share.map((d) => d.id), node: share[0]!.node };
  });

  const used = new Set(ranks.flatMap((rank) => rank.devices));
  const idle = devices.filter((d) => !used.has(d.id));
  if (idle.length > 0) {
    notes.push(
      `'${name}' leaves ${idle.map((d) => d.id).join(", ")} idle: ${count} ranks of ${ranks[0]!.devices.length} devices do not fill its ${devices.length}`,
    );
  }
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
  checkMemory(component, devices, ranks);
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
