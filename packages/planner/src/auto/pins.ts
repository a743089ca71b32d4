/** Reads `placement.components` of some components as pins. */
import type { DeviceSpec } from "@treadle/contracts";
import { explicitPlacements } from "../placement-explicit.ts";
import { componentsOf } from "../placement-grammar.ts";
import type { PlacementComponent } from "../placement-input.ts";
import type { Pin } from "./pools.ts";

type Cluster = {
  readonly components: readonly PlacementComponent[];
  readonly devices: readonly DeviceSpec[];
  readonly numbered?: readonly DeviceSpec[] | undefined;
  readonly nodeGroups?: Readonly<Record<string, readonly number[]>> | undefined;
};

/** Components with the same devices are one pin. Throws `placement.invalid` as `resolvePlacement` does. */
export function pinsOf(
  pinned: Readonly<Record<string, string>>,
  { components, devices, numbered, nodeGroups }: Cluster,
): Pin[] {
  const names = new Set(Object.keys(pinned).flatMap(componentsOf));
  if (names.size === 0) return [];
  const known = components.filter(({ name }) => names.has(name));
  const placed = explicitPlacements(
    {
      mode: "hybrid",
      // All components where a name is unknown, so that the error lists those there are.
      components: [...(known.length === names.size ? known : components)],
      devices: [...devices],
      ...(numbered === undefined ? {} : { numbered: [...numbered] }),
      ...(nodeGroups === undefined
        ? {}
        : { nodeGroups: Object.fromEntries(Object.entries(nodeGroups).map(([key, nodes]) => [key, [...nodes]])) }),
      maxStaleness: 0,
    },
    pinned,
  );
  const pins = new Map<string, { components: string[]; devices: readonly DeviceSpec[] }>();
  for (const [name, { devices: set }] of placed) {
    const key = set
      .map(({ id }) => id)
      .sort()
      .join("\n");
    const pin = pins.get(key) ?? { components: [], devices: set };
    pins.set(key, pin);
    pin.components.push(name);
  }
  return [...pins.values()];
}
