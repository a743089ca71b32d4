/** `placement.wishes`: what they leave of components and devices, and which of them a plan breaks. Pure. */
import { type DeviceSpec, nearestOf, type PlacementWishes, type Plan, TreadleError } from "@treadle/contracts";
import { type Numbering, namedDevices } from "./placement-explicit.ts";
import { componentsOf, formatDeviceNumbers, invalid, parsePlacement } from "./placement-grammar.ts";
import type { PlacementComponent, PlacementInput } from "./placement-input.ts";
import { rankBounds } from "./placement-ranks.ts";
import { isSlot } from "./placement-slots.ts";
import { contradiction, joinedGroups } from "./wishes.ts";

type Wanting = Pick<PlacementInput, "components" | "devices" | "numbered"> & {
  readonly nodeGroups?: Readonly<Record<string, readonly number[]>> | undefined;
  readonly explicit?: Readonly<Record<string, string>> | undefined;
  readonly wishes?: PlacementWishes | undefined;
};

/**
 * The same with fewer devices and ranks; a limited rank spans one device where neither its component nor
 * `placement.components` says how many. Throws `placement.invalid` where wishes contradict each other or the workflow, or
 * name what it does not have.
 */
export function withWishes<T extends Wanting>(input: T): T {
  const { wishes } = input;
  if (wishes === undefined) return input;
  checkNames(wishes, input.components);
  const groups = joinedGroups(wishes.together ?? []);
  for (const apart of wishes.apart ?? []) {
    const both = contradiction(groups, apart);
    if (both)
      throw refused(
        "apart",
        `'${both[0]}' and '${both[1]}' cannot be kept both apart and together; drop one of the two wishes`,
      );
  }
  const spans = new Set(
    Object.entries(input.explicit ?? {})
      .filter(([key, value]) => parsePlacement(key, value).devicesPerRank !== undefined)
      .flatMap(([key]) => componentsOf(key)),
  );
  const components = input.components.map((component) => {
    const most = mostRanksOf(wishes, component.name);
    if (most === undefined) return component;
    const { min, max } = rankBounds(component);
    if (most < min)
      throw refused(
        `maxRanks.${component.name}`,
        `'${most}' is below the ${min} ${min === 1 ? "rank" : "ranks"} that the workflow asks for; raise it, or lower that`,
      );
    const { fixed: _, ...ranks } = component.ranks ?? {};
    const limited = most >= max ? component : { ...component, ranks: { ...ranks, max: most } };
    // Few ranks on many devices would otherwise span several each, and the limit bring nothing but idle devices.
    const isSized = spans.has(component.name) || component.degrees !== undefined;
    return isSized || component.devices === "none" ? limited : { devicesPerRank: 1, ...limited };
  });
  const { freeDevices, ...others } = wishes;
  if (freeDevices === undefined) return { ...input, components, wishes: others };
  const free = freeDevicesOf(freeDevices, input);
  checkPins(input, free);
  const devices = input.devices.filter(({ id }) => !free.has(id));
  if (devices.length === 0)
    throw refused(
      "freeDevices",
      `'${freeDevices}' leaves none of ${input.devices.length} devices to run on; keep fewer free`,
    );
  // Once they are gone there is nothing more to keep free; what is placed is still counted with them.
  return { ...input, components, devices, numbered: input.numbered ?? input.devices, wishes: others };
}

/** Names of components are whatever a workflow calls them, `constructor` included. */
export const mostRanksOf = ({ maxRanks = {} }: PlacementWishes, name: string): number | undefined =>
  Object.hasOwn(maxRanks, name) ? maxRanks[name] : undefined;

const refused = (key: string, problem: string): TreadleError =>
  new TreadleError("placement.invalid", `placement.wishes.${key}: ${problem}`, { details: { wish: key } });

function checkNames(wishes: PlacementWishes, components: readonly PlacementComponent[]): void {
  const known = components.map(({ name }) => name);
  const named = [
    ...Object.keys(wishes.maxRanks ?? {}).map((name) => ["maxRanks", name] as const),
    ...(wishes.together ?? []).flat().map((name) => ["together", name] as const),
    ...(wishes.apart ?? []).flat().map((name) => ["apart", name] as const),
  ];
  for (const [key, name] of named) {
    if (known.includes(name)) continue;
    const nearest = nearestOf(name, known);
    throw refused(
      key,
      `names component '${name}', but this workflow has ${known.map((each) => `'${each}'`).join(", ")}${nearest ? `; did you mean '${nearest}'?` : ""}`,
    );
  }
  for (const key of ["together", "apart"] as const) {
    for (const group of wishes[key] ?? []) {
      const twice = group.find((name, i) => group.indexOf(name) < i);
      if (twice !== undefined) throw refused(key, `names '${twice}' twice in one group; name it once`);
      const without = components.find(({ name, devices }) => devices === "none" && group.includes(name))?.name;
      if (key === "together" && without !== undefined)
        throw refused(
          key,
          `names '${without}', which has no devices to share; drop it from the wish, or give it devices`,
        );
    }
  }
}

/** The ids of devices that must stay free, those that have gone included. Throws `placement.invalid` for what never was. */
export function freeDevices(input: Numbering & Pick<Wanting, "wishes">): ReadonlySet<string> {
  const expression = input.wishes?.freeDevices;
  return expression === undefined ? new Set() : freeDevicesOf(expression, input);
}

type Blamed = Pick<Wanting, "nodeGroups" | "wishes"> & {
  readonly devices: readonly DeviceSpec[];
  readonly numbered?: readonly DeviceSpec[] | undefined;
};

/**
 * `plan`, whose failure names the devices that must stay free where it is they that leave too few. Whether they do is found
 * out by asking once more without the wish.
 */
export function blamingFreeDevices<T extends Blamed, R>(input: T, plan: (input: T) => R): R {
  try {
    return plan(input);
  } catch (error) {
    const { freeDevices: expression, ...others } = input.wishes ?? {};
    if (!(error instanceof TreadleError) || error.code !== "placement.impossible" || expression === undefined)
      throw error;
    try {
      plan({ ...input, wishes: others });
    } catch {
      throw error;
    }
    const { devices, numbered = devices, nodeGroups } = input;
    const free = freeDevicesOf(expression, { devices: [...devices], numbered: [...numbered], nodeGroups });
    const [all, left] = [devices.length, devices.filter(({ id }) => !free.has(id)).length];
    throw new TreadleError(
      error.code,
      `placement.wishes.freeDevices '${expression}' leaves too few devices, ${left} of ${all}, where all of them are enough; keep fewer free: ${error.message}`,
      { details: { ...error.details, wish: "freeDevices" }, cause: error.cause },
    );
  }
}

/** As the cluster is numbered. */
function freeDevicesOf(expression: string, numbering: Numbering): ReadonlySet<string> {
  const name = "wishes.freeDevices";
  try {
    const parsed = parsePlacement(name, expression);
    if (parsed.devicesPerRank !== undefined || parsed.ranksPerShare !== 1)
      throw invalid(parsed.text, "lays ranks over devices that stay free; leave out '/' and 'x', as in '0-3'");
    const named = namedDevices(parsed, { name }, numbering);
    return new Set(named.map(({ device }) => device.id));
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    const own = error.message.replace(`placement.components: '${name}: `, `placement.${name}: '`);
    // Without its cause, which says the same of another key.
    throw new TreadleError(error.code, own, { details: error.details });
  }
}

/** A component that is pinned on a device that must stay free contradicts it; one that is pinned on `all` gets the others. */
function checkPins(input: Wanting, free: ReadonlySet<string>): void {
  const { explicit = {}, components, wishes } = input;
  const remedy = "name other devices, or drop it from freeDevices";
  for (const [key, value] of Object.entries(explicit)) {
    const expression = parsePlacement(key, value);
    const names = componentsOf(key);
    for (const component of components.filter(({ name }) => names.includes(name))) {
      const named = namedDevices(expression, component, input);
      const pinned = named.find(({ device, byAll }) => !byAll && free.has(device.id));
      const isLeft = named.some(({ device }) => !free.has(device.id));
      if (pinned === undefined && isLeft) continue;
      throw invalid(
        expression.text,
        pinned === undefined
          ? `has no device left: placement.wishes.freeDevices '${wishes?.freeDevices}' keeps all of them free; ${remedy}`
          : `names device ${pinned.number} ('${pinned.device.id}'), which placement.wishes.freeDevices '${wishes?.freeDevices}' keeps free; ${remedy}`,
        { component: component.name, wish: "freeDevices" },
      );
    }
  }
}

/** What a plan does not keep, a sentence each; `devices`: those that it may use. */
export function brokenWishes(
  plan: Plan,
  wishes: PlacementWishes | undefined,
  devices: readonly DeviceSpec[],
): string[] {
  if (wishes === undefined) return [];
  const { modes, useAllDevices = false, together = [], apart = [] } = wishes;
  const broken: string[] = [];
  if (modes !== undefined && !modes.includes(plan.mode))
    broken.push(`it is ${plan.mode}, and wanted is ${modes.map((mode) => `'${mode}'`).join(" or ")}`);
  const devicesOf = (name: string): Set<string> =>
    new Set(plan.components[name]?.ranks.flatMap((rank) => rank.devices) ?? []);
  const pairs = (group: readonly string[]) =>
    group.flatMap((a, i) => group.slice(i + 1).map((b) => [a, b, devicesOf(a), devicesOf(b)] as const));
  for (const [a, b, ofA, ofB] of apart.flatMap(pairs)) {
    if ([...ofA].some((id) => ofB.has(id))) broken.push(`'${a}' and '${b}', which are to be kept apart, share devices`);
  }
  for (const [a, b, ofA, ofB] of together.flatMap(pairs)) {
    // One whose ranks fill fewer devices has some of the other's.
    const [few, many] = ofA.size <= ofB.size ? [ofA, ofB] : [ofB, ofA];
    if ([...few].some((id) => !many.has(id)))
      broken.push(`'${a}' and '${b}', which are to be kept together, have other devices`);
  }
  if (useAllDevices) {
    const used = new Set(Object.keys(plan.components).flatMap((name) => [...devicesOf(name)]));
    // A kind that no component runs on has nothing to do.
    const kinds = new Set(devices.filter(({ id }) => used.has(id)).map(({ kind }) => kind));
    for (const kind of kinds) {
      const idle = devices.filter((device) => device.kind === kind && !used.has(device.id) && !isSlot(device));
      if (idle.length > 0)
        broken.push(
          `it leaves ${kind} ${formatDeviceNumbers(idle.map(({ index }) => index))} idle, and all devices are to be used`,
        );
    }
  }
  return broken;
}
