/**
 * Components without devices: those launched so, and those that `placement.components` gives `none`. Pure.
 *
 * What places, predicts and replays components knows devices alone. So while a plan is made, every rank of such a component
 * holds a *slot*: a device of a kind of its component's own. What leaves the planner has none of them.
 *
 * - WD1 the others get the devices that they would get without these components, in every mode but `auto`, which may find
 *   another plan where such a component takes time.
 * - WD2 a component without devices has none in any plan, and as many ranks as it was given.
 */
import { type DeviceSpec, type Plan, TreadleError } from "@treadle/contracts";
import { componentsOf, parsePlacement } from "./placement-grammar.ts";
import type { PlacementComponent } from "./placement-input.ts";
import { rankBounds } from "./placement-ranks.ts";

type Placed = {
  readonly components: readonly PlacementComponent[];
  readonly explicit?: Readonly<Record<string, string>> | undefined;
};

const prefix = "processes of ";
const slotKind = (component: string): string => `${prefix}${component}`;

export const isSlot = ({ kind }: Pick<DeviceSpec, "kind">): boolean => kind.startsWith(prefix);

/**
 * The same with `devices: "none"` and a fixed number of ranks at every component that has no devices, and nothing of them
 * in `explicit`, which goes before what was launched. Throws `placement.impossible` for ranks that a component does not
 * allow; what `explicit` says of unknown names, or twice, is left to those who read the rest of it.
 */
export function withoutDevices<T extends Placed>(input: T): T {
  const placed = new Map<string, number | undefined>();
  const explicit: Record<string, string> = {};
  const known = new Set(input.components.map(({ name }) => name));
  const entries = Object.entries(input.explicit ?? {});
  const all = entries.flatMap(([key]) => componentsOf(key));
  for (const [key, value] of entries) {
    const isNone = value.trim().startsWith("none");
    const { ranksPerShare } = isNone ? parsePlacement(key, value) : { ranksPerShare: 1 };
    const names = componentsOf(key);
    if (!isNone || names.some((name) => !known.has(name) || all.indexOf(name) < all.lastIndexOf(name))) {
      explicit[key] = value;
      for (const name of names) placed.set(name, undefined);
    } else for (const name of names) placed.set(name, ranksPerShare);
  }
  const components = input.components.map((component) => {
    const { name, devices: launched, ...others } = component;
    const numRanks = placed.has(name) ? placed.get(name) : launched && 1;
    if (numRanks === undefined) return launched ? { name, ...others } : component;
    return { name, devices: "none" as const, ranks: { fixed: ranksOf(component, numRanks) } };
  });
  if (components.every((component, i) => component === input.components[i])) return input;
  const { explicit: _, ...rest } = input;
  return { ...(rest as unknown as T), components, ...(Object.keys(explicit).length > 0 ? { explicit } : {}) };
}

function ranksOf(component: PlacementComponent, asked: number): number {
  const { min, max } = rankBounds(component);
  const numRanks = asked > 1 ? asked : min;
  if (numRanks >= min && numRanks <= max) return numRanks;
  const allowed = max === Number.POSITIVE_INFINITY ? `at least ${min}` : `${min} to ${max}`;
  throw new TreadleError(
    "placement.impossible",
    `component '${component.name}' would have ${numRanks} ranks without devices, but it allows ${allowed}; change the number after 'none x', or its ranks`,
    { details: { component: component.name, ranks: numRanks } },
  );
}

/** The same with a slot for each rank that has no devices, spread over the nodes; where `explicit` places others, it places these, too. */
export function withSlots<T extends Placed & { readonly devices: readonly DeviceSpec[] }>(given: T): T {
  const input = withoutDevices(given);
  const nodes = [...new Set(input.devices.map(({ node }) => node))];
  const slots: DeviceSpec[] = [];
  const components = input.components.map((component) => {
    const { devices, name, ranks } = component;
    if (devices === undefined) return component;
    const kind = slotKind(name);
    for (let index = 0; index < rankBounds(component).min; index++) {
      const node = nodes[slots.length % nodes.length] as string;
      slots.push({ id: `${kind}:${index}`, index, node, kind, memoryBytes: Number.MAX_SAFE_INTEGER });
    }
    return { name, ranks, deviceKind: kind };
  });
  if (slots.length === 0) return input;
  const placed = { ...input, components, devices: [...input.devices, ...slots] };
  if (Object.keys(input.explicit ?? {}).length === 0) return placed;
  const own = input.components.flatMap(({ name, devices }) => (devices === undefined ? [] : [[name, "all"] as const]));
  return { ...placed, explicit: { ...input.explicit, ...Object.fromEntries(own) } };
}

/** WD2. */
export function withoutSlots(plan: Plan): Plan {
  const components = Object.entries(plan.components).map(([name, { ranks }]) => {
    const own = ranks.map(({ node, devices }) => ({ devices: devices.filter((id) => !id.startsWith(prefix)), node }));
    return [name, { ranks: own }] as const;
  });
  return { ...plan, components: Object.fromEntries(components) };
}

/** In the grammar of `placement.components`. */
export const placementWithout = (numRanks: number): string => (numRanks > 1 ? `none x${numRanks}` : "none");
