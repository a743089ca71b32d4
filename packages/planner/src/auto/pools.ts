/** Which devices may be shared by which components: devices of different kinds never are, and pinned ones only as pinned. */
import { type DeviceSpec, type PlacementWishes, TreadleError } from "@treadle/contracts";
import { formatDeviceNumbers } from "../placement-grammar.ts";
import { isSlot } from "../placement-slots.ts";

/** Devices that the components named have for themselves, and take turns on if there are several. */
export type Pin = { readonly components: readonly string[]; readonly devices: readonly DeviceSpec[] };

export type Pool = {
  readonly name: string;
  readonly kind: string;
  readonly devices: readonly DeviceSpec[];
  /** of the smallest of its devices */
  readonly memoryBytes: number;
  readonly components: readonly string[];
  /** its components are pinned to all of it, or the only ones that may have it */
  readonly shared: boolean;
};

const pinned = "pinned: ";

/** Pools with their components; the first is the one with most components, and most devices among those. */
export function poolsOf(
  components: readonly { readonly name: string; readonly kind?: string | undefined }[],
  devices: readonly DeviceSpec[],
  pins: readonly Pin[],
): Pool[] {
  const poolOfPin = new Map<string, string>();
  const taken = new Set<string>();
  const pools: Pool[] = [];
  for (const pin of pins) {
    const name = `${pinned}${pin.components.join("+")}`;
    for (const component of pin.components) poolOfPin.set(component, name);
    const again = pin.devices.find((device) => taken.has(device.id));
    if (again !== undefined) {
      throw new TreadleError(
        "placement.impossible",
        `${pin.components.map((c) => `'${c}'`).join(", ")} and other pinned components overlap on '${again.id}'; pin components to the same devices or to different ones`,
        { details: { components: pin.components, device: again.id } },
      );
    }
    for (const device of pin.devices) taken.add(device.id);
    pools.push(poolOf(name, pin.devices, pin.components, true));
  }
  const byKind = new Map<string, string[]>();
  for (const { name, kind = devices[0]!.kind } of components) {
    if (!poolOfPin.has(name)) byKind.set(kind, [...(byKind.get(kind) ?? []), name]);
  }
  for (const [kind, names] of byKind) {
    const all = devices.filter((device) => device.kind === kind);
    const free = all.filter((device) => !taken.has(device.id));
    if (free.length === 0) {
      const kinds = [...new Set(devices.map((device) => device.kind))].map((k) => `'${k}'`).join(", ");
      throw new TreadleError(
        "placement.impossible",
        all.length === 0
          ? `component '${names[0]}' needs a device of kind '${kind}', but this cluster has only ${kinds}; add one or change its deviceKind`
          : `pinned components leave no '${kind}' device for ${names.map((n) => `'${n}'`).join(", ")}; pin fewer devices, or pin these too`,
        { details: { components: names, kind } },
      );
    }
    pools.push(poolOf(kind, free, names, free.every(isSlot)));
  }
  const isSearched = (pool: Pool): number => (pool.shared ? 0 : 1);
  return pools.sort(
    (a, b) =>
      isSearched(b) - isSearched(a) || b.components.length - a.components.length || b.devices.length - a.devices.length,
  );
}

/** Components of different kinds, or pinned to different devices, have none in common. */
export function checkTogether(pools: readonly Pool[], wishes: PlacementWishes | undefined): void {
  const ofName = (name: string) => pools.find(({ components }) => components.includes(name))!;
  const where = ({ kind, devices }: Pool): string =>
    `${kind} ${formatDeviceNumbers(devices.map(({ index }) => index))}`;
  for (const group of wishes?.together ?? []) {
    const [first] = group as [string, ...string[]];
    const other = group.find((name) => ofName(name) !== ofName(first));
    if (other === undefined) continue;
    const [a, b] = [ofName(first), ofName(other)];
    const isPinned = a.kind === b.kind && (isPin(a) || isPin(b));
    const problem = isPinned
      ? `placement.wishes.together wants '${first}' and '${other}' on the same devices, but placement.components gives '${isPin(a) ? first : other}' ${where(isPin(a) ? a : b)} for itself; name both there for the same devices, or drop the wish`
      : `'${first}' may only be on ${where(a)} and '${other}' on ${where(b)}, but placement.wishes.together wants both on the same devices; drop the wish, or change their deviceKind or placement.components`;
    throw new TreadleError("placement.impossible", problem, { details: { components: [first, other] } });
  }
}

const isPin = ({ name }: Pool): boolean => name.startsWith(pinned);

function poolOf(name: string, devices: readonly DeviceSpec[], components: readonly string[], shared: boolean): Pool {
  const memoryBytes = Math.min(...devices.map((device) => device.memoryBytes));
  return { name, kind: devices[0]!.kind, devices, memoryBytes, components, shared };
}
