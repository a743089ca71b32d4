/** Where a component goes that is launched while others run. Pure. */
import { type Plan, TreadleError } from "@treadle/contracts";
import { resolvePlacement, withWishes } from "@treadle/planner";
import type { PlacementFacts } from "./placement-facts.ts";

export type JoinInput = {
  /** of the others, with every rank where it is now */
  readonly current: Plan;
  /** with the component that joins */
  readonly facts: PlacementFacts;
  readonly name: string;
};

/**
 * The plan with it: on the devices of those that it is to be together with, else on all that wishes leave it, where it takes
 * turns with the others. Those stay as they are. Throws `placement.impossible` where wishes leave it no device.
 */
export function joinPlan({ current, facts, name }: JoinInput): Plan {
  const { explicit, wishes, ...wanted } = withWishes(facts);
  const devicesOf = (others: readonly string[]): ReadonlySet<string> =>
    new Set(others.flatMap((other) => current.components[other]?.ranks.flatMap(({ devices }) => devices) ?? []));
  const withIt = (groups: readonly (readonly string[])[] = []): string[] =>
    groups.filter((group) => group.includes(name)).flatMap((group) => group.filter((other) => other !== name));
  const [apart, together] = [withIt(wishes?.apart), withIt(wishes?.together)];
  const [avoided, shared] = [devicesOf(apart), devicesOf(together)];
  const devices = wanted.devices.filter(({ id }) => !avoided.has(id) && (shared.size === 0 || shared.has(id)));
  if (devices.length === 0) {
    const others = apart.map((other) => `'${other}'`).join(", ");
    throw new TreadleError(
      "placement.impossible",
      `no device is left for '${name}', which placement.wishes.apart keeps from ${others}; end that one first, or drop the wish`,
      { details: { component: name, apart } },
    );
  }
  const own = Object.entries(explicit ?? {}).find(([key]) => key.split(",").some((each) => each.trim() === name));
  const placed = resolvePlacement({
    ...wanted,
    mode: "temporal",
    devices,
    // Numbers stay those of all devices.
    numbered: wanted.numbered ?? wanted.devices,
    // Where placement.components names others alone, it says of which component it says nothing.
    ...(explicit === undefined ? {} : { explicit: own === undefined ? explicit : { [name]: own[1] } }),
    components: wanted.components.filter((component) => component.name === name || (explicit && own === undefined)),
  });
  const { ranks } = placed.components[name] as Plan["components"][string];
  const used = new Set(ranks.flatMap((rank) => rank.devices));
  const sharing = current.sharing.map((each) =>
    each.devices.some((device) => used.has(device)) ? { ...each, components: [...each.components, name] } : each,
  );
  return { ...current, components: { ...current.components, [name]: { ranks } }, sharing };
}
