import { type DeviceSpec, type PlacementMode, type Plan, TreadleError } from "@treadle/contracts";
import { explicitPlacements } from "./placement-explicit.ts";
import { formatDeviceNumbers } from "./placement-grammar.ts";
import { checkPlacementInput, type PlacementInput } from "./placement-input.ts";
import { type DeviceSets, defaultDeviceSets, modesOfSets } from "./placement-modes.ts";
import { layRanks, type RankRequest } from "./placement-ranks.ts";
import { isSlot, placementWithout, withoutDevices, withoutSlots, withSlots } from "./placement-slots.ts";
import { blamingFreeDevices, brokenWishes, withWishes } from "./placement-wishes.ts";

/** What `placement.impossible` carries as `details.nearest`: settings that do work, in the words of the configuration. */
export type NearestPlacement = { readonly mode: PlacementMode; readonly components: Readonly<Record<string, string>> };

/**
 * Where every rank of every component runs, how finely channels are chunked, and who takes turns with whom.
 *
 * Pure. Throws `placement.invalid` for an input or expression that makes no sense, with the expression and position, and
 * `placement.impossible` for one that makes sense but does not fit the devices; the latter's message and
 * `details.nearest` (a `NearestPlacement`, or null) say what would.
 */
export function resolvePlacement(input: unknown): Plan {
  return blamingFreeDevices(checkPlacementInput(input), resolveOnce);
}

function resolveOnce(input: PlacementInput): Plan {
  const checked = withWishes(withoutDevices(input));
  try {
    const plan = place(checked);
    const broken = brokenBy(plan, checked);
    if (broken.length === 0) return plan;
    throw new TreadleError(
      "placement.impossible",
      `placement.mode '${checked.mode}' does not keep placement.wishes: ${broken.join("; ")}; choose placement.mode=auto, which looks for a plan that keeps them, or say in placement.components which devices each component gets`,
      { details: { broken } },
    );
  } catch (error) {
    if (!(error instanceof TreadleError) || error.code !== "placement.impossible") throw error;
    const nearest = nearestPlacement(checked);
    const remedy = nearest
      ? `; nearest possible: placement.mode=${nearest.mode} with '${Object.entries(nearest.components)
          .map(([key, value]) => `${key}: ${value}`)
          .join("; ")}'`
      : "";
    throw new TreadleError("placement.impossible", `${error.message}${remedy}`, {
      details: { ...error.details, nearest: nearest ?? null },
      cause: error.cause,
    });
  }
}

/** What is said of a mode holds for the devices that are written out, too, by whatever name they were asked for. */
function brokenBy(plan: Plan, input: PlacementInput): string[] {
  const broken = brokenWishes(plan, input.wishes, input.devices);
  const { explicit = {}, wishes } = input;
  if (wishes?.modes === undefined || broken.length > 0 || Object.keys(explicit).length === 0) return broken;
  const slotted = withSlots(input);
  const sets = [...explicitPlacements(slotted, slotted.explicit ?? {}).values()].map(({ devices }) => devices);
  const modes = modesOfSets(sets);
  if (modes.some((mode) => wishes.modes?.includes(mode))) return broken;
  const quoted = (of: readonly PlacementMode[]): string => of.map((mode) => `'${mode}'`).join(" or ");
  return [`the devices in placement.components make it ${quoted(modes)}, and wanted is ${quoted(wishes.modes)}`];
}

function place(given: PlacementInput): Plan {
  const input = withSlots(given);
  const requests = new Map<string, RankRequest>();
  let sets: DeviceSets;
  if (input.explicit !== undefined && Object.keys(input.explicit).length > 0) {
    const placed = explicitPlacements(input, input.explicit);
    sets = new Map(input.components.map((c) => [c.name, placed.get(c.name)!.devices]));
    for (const [name, { expression }] of placed) {
      const { devicesPerRank, ranksPerShare } = expression;
      requests.set(name, { devicesPerRank, ...(ranksPerShare > 1 ? { ranksPerShare } : {}) });
    }
    checkMode(input, sets);
  } else {
    sets = defaultDeviceSets(input, input.mode);
  }

  const components: Plan["components"] = {};
  const explanation = [modeSentence(input, sets)];
  const notes: string[] = [];
  for (const component of input.components) {
    const layout = layRanks(component, sets.get(component.name)!, requests.get(component.name));
    components[component.name] = { ranks: layout.ranks };
    notes.push(...layout.notes);
  }
  const sharing = sharingOf(input, components);
  const { granularity, note } = chooseGranularity(input, components);
  return withoutSlots({
    mode: input.mode,
    components,
    granularity,
    maxStaleness: input.maxStaleness,
    sharing,
    explanation: [...explanation, ...notes, note],
  });
}

function modeSentence(input: PlacementInput, sets: DeviceSets): string {
  const byDevices = new Map<string, string[]>();
  for (const [name, devices] of sets) {
    const numbers = formatDeviceNumbers(devices.map((d) => d.index));
    const key = devices.every(isSlot) ? "no devices" : `${devices[0]!.kind} ${numbers}`;
    byDevices.set(key, [...(byDevices.get(key) ?? []), name]);
  }
  const parts = [...byDevices].map(([devices, names]) => `${names.join(", ")} on ${devices}`);
  return `${input.mode}${input.explicit ? ", as placement.components says" : ""}: ${parts.join("; ")}`;
}

/** A mode is a promise about sharing, which explicit sets must keep. */
function checkMode(input: PlacementInput, sets: DeviceSets): void {
  const names = [...sets.keys()];
  for (const [i, a] of names.entries()) {
    for (const b of names.slice(i + 1)) {
      const [devicesA, devicesB] = [sets.get(a)!, sets.get(b)!];
      const ids = new Set(devicesA.map((d) => d.id));
      const common = devicesB.filter((d) => ids.has(d.id));
      if (input.mode === "spatial" && common.length > 0) {
        throw new TreadleError(
          "placement.impossible",
          `placement.mode 'spatial' gives every component devices of its own, but placement.components puts both '${a}' and '${b}' on ${common.map((d) => `'${d.id}'`).join(", ")}`,
          { details: { components: [a, b], devices: common.map((d) => d.id) } },
        );
      }
      const sameKind = devicesA[0]!.kind === devicesB[0]!.kind;
      if (input.mode === "temporal" && sameKind && !(common.length === ids.size && common.length === devicesB.length)) {
        throw new TreadleError(
          "placement.impossible",
          `placement.mode 'temporal' has all components take turns on the same devices, but placement.components puts '${a}' on ${formatDeviceNumbers(devicesA.map((d) => d.index))} and '${b}' on ${formatDeviceNumbers(devicesB.map((d) => d.index))}`,
          { details: { components: [a, b] } },
        );
      }
    }
  }
}

/** Tries what is closest first: the same mode without what was written, then the written sets as a hybrid, then others. */
function nearestPlacement(input: PlacementInput): NearestPlacement | undefined {
  const { explicit, ...rest } = input;
  const named = explicit ? devicesNamed(input) : undefined;
  const onNamed = named && named.length > 0 ? { ...rest, devices: named } : rest;
  const largeEnough = input.devices.filter((d) =>
    input.components.every((c) => (c.memoryBytesPerDevice ?? 0) <= d.memoryBytes),
  );
  const attempts: PlacementInput[] = [
    ...(explicit ? [onNamed, { ...input, mode: "hybrid" as const }] : []),
    { ...rest, mode: input.mode },
    { ...rest, mode: "hybrid" },
    { ...rest, mode: "temporal" },
    ...(largeEnough.length > 0
      ? [
          { ...rest, devices: largeEnough },
          { ...rest, devices: largeEnough, mode: "temporal" as const },
        ]
      : []),
  ];
  for (const attempt of attempts) {
    try {
      if (brokenBy(place(attempt), attempt).length > 0) continue;
      const sets = attempt.explicit ?? writeSets(defaultDeviceSets(withSlots(attempt), attempt.mode));
      return { mode: attempt.mode, components: { ...sets, ...writeWithout(attempt) } };
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
    }
  }
  return undefined;
}

function devicesNamed(input: PlacementInput): DeviceSpec[] {
  try {
    const slotted = withSlots(input);
    const ids = new Set(
      [...explicitPlacements(slotted, slotted.explicit ?? {}).values()].flatMap((p) => p.devices.map((d) => d.id)),
    );
    return input.devices.filter((d) => ids.has(d.id));
  } catch {
    return [];
  }
}

/** Device sets in the grammar of `placement.components`, components with equal sets under one key. */
function writeSets(sets: DeviceSets): Record<string, string> {
  const byDevices = new Map<string, { names: string[]; devices: readonly DeviceSpec[] }>();
  for (const [name, devices] of sets) {
    if (devices.every(isSlot)) continue;
    const key = devices.map((d) => d.id).join(" ");
    const entry = byDevices.get(key) ?? { names: [], devices };
    entry.names.push(name);
    byDevices.set(key, entry);
  }
  return Object.fromEntries(
    [...byDevices.values()].map(({ names, devices }) => [
      names.join(","),
      formatDeviceNumbers(devices.map((d) => d.index)),
    ]),
  );
}

/** Components that have no devices, in the same grammar. */
function writeWithout({ components }: PlacementInput): Record<string, string> {
  const without = components.filter(({ devices }) => devices === "none");
  return Object.fromEntries(without.map(({ name, ranks }) => [name, placementWithout(ranks?.fixed ?? 1)]));
}

function sharingOf(input: PlacementInput, components: Plan["components"]): Plan["sharing"] {
  const byDevice = new Map<string, Map<string, number>>();
  for (const [name, { ranks }] of Object.entries(components)) {
    for (const id of ranks.flatMap((rank) => rank.devices)) {
      const users = byDevice.get(id) ?? new Map<string, number>();
      users.set(name, (users.get(name) ?? 0) + 1);
      byDevice.set(id, users);
    }
  }
  const groups = new Map<string, { components: string[]; devices: string[]; fitTogether: boolean }>();
  for (const device of input.devices) {
    const users = byDevice.get(device.id);
    if (users === undefined || users.size < 2) continue;
    const names = input.components.map((c) => c.name).filter((name) => users.has(name));
    const group = groups.get(names.join(",")) ?? { components: names, devices: [], fitTogether: true };
    groups.set(names.join(","), group);
    group.devices.push(device.id);
    let bytes = 0;
    for (const c of input.components)
      bytes +=
        (users.get(c.name) ?? 0) > 0 ? (c.memoryBytesPerDevice ?? Number.POSITIVE_INFINITY) * users.get(c.name)! : 0;
    if (bytes > device.memoryBytes) group.fitTogether = false;
  }
  return [...groups.values()];
}

const mostChunks = 8;
const fewestChunks = 4;

/**
 * `auto`: the whole batch where components take turns, since a swap a chunk would cost more than it hides; otherwise
 * four to eight chunks, of equal size where the batch allows, which hides most of the pipeline's filling (with k chunks
 * of equal stages 1/k of it remains). In a hybrid, channels between components that share a device carry whole batches.
 */
function chooseGranularity(
  input: PlacementInput,
  components: Plan["components"],
): { granularity: Plan["granularity"]; note: string } {
  const { granularity = "auto", batchItems, flow = [], mode } = input;
  if (granularity === "all" || typeof granularity === "number") {
    return { granularity: { default: granularity, channels: {} }, note: `granularity ${granularity}, as configured` };
  }
  const auto = (): { chunk: number | "all"; why: string } => {
    if (mode === "temporal")
      return { chunk: "all", why: "granularity all: components that take turns swap once a batch" };
    if (batchItems === undefined)
      return { chunk: "all", why: "granularity all: without the batch's size nothing is chunked" };
    let chunks = mostChunks;
    while (chunks >= fewestChunks && batchItems % chunks !== 0) chunks--;
    const chunk = chunks >= fewestChunks ? batchItems / chunks : Math.max(1, Math.ceil(batchItems / mostChunks));
    return {
      chunk,
      why: `granularity ${chunk}: the batch of ${batchItems} in ${Math.ceil(batchItems / chunk)} chunks`,
    };
  };
  const { chunk, why } = auto();
  const channels: Plan["granularity"]["channels"] = {};
  if (mode === "hybrid" && chunk !== "all") {
    for (const { from, to, channel } of flow) {
      const [a, b] = [components[from], components[to]];
      if (channel === undefined || a === undefined || b === undefined) continue;
      const devices = new Set(a.ranks.flatMap((rank) => rank.devices));
      if (b.ranks.some((rank) => rank.devices.some((id) => devices.has(id)))) channels[channel] = "all";
    }
  }
  if (granularity !== "auto") {
    for (const [channel, items] of Object.entries(granularity)) if (items !== "auto") channels[channel] = items;
  }
  return { granularity: { default: chunk, channels }, note: why };
}
