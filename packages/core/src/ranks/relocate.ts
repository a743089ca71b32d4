/**
 * Where a rank goes whose node is gone. Pure.
 *
 * RE1 all devices of a rank are of one node, each of the kind that the lost one was.
 * RE2 the node whose busiest chosen device has the fewest ranks is taken; ties go to the node that comes first, as does a
 *    rank without devices.
 */
import type { DeviceSpec } from "@treadle/contracts";

export type Place = { readonly node: string; readonly devices: readonly string[] };

/** `ranksOn`: how many ranks a device has already. Undefined when no node has as many devices of these kinds. */
export function relocate(
  lost: readonly string[],
  present: readonly DeviceSpec[],
  ranksOn: (device: string) => number,
): Place | undefined {
  const kinds = lost.map(kindOf);
  let best: { readonly place: Place; readonly busiest: number } | undefined;
  for (const node of new Set(present.map((device) => device.node))) {
    const free = present
      .filter((device) => device.node === node)
      .toSorted((a, b) => ranksOn(a.id) - ranksOn(b.id) || a.index - b.index);
    const chosen: DeviceSpec[] = [];
    for (const kind of kinds) {
      const at = free.findIndex((device) => device.kind === kind);
      if (at < 0) break;
      chosen.push(...free.splice(at, 1));
    }
    if (chosen.length < kinds.length) continue;
    const busiest = Math.max(...chosen.map(({ id }) => ranksOn(id)));
    if (best === undefined || busiest < best.busiest) {
      best = { place: { node, devices: chosen.map(({ id }) => id) }, busiest };
    }
  }
  return best?.place;
}

/** Of a device such as `cpu:3`, or `node-a/cuda:0`. */
export function kindOf(device: string): string {
  return device.slice(device.lastIndexOf("/") + 1, device.lastIndexOf(":"));
}
