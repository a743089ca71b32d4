/** What a plan is made of, besides the mode: what was launched, what was configured, and the devices there are. */
import { type DeviceSpec, type ObservedCall, type Plan, type RuntimeConfig, TreadleError } from "@treadle/contracts";
import { type PlacementInput, type SwapCost, withoutDevices } from "@treadle/planner";
import type { LaunchOptions } from "../../author/cluster.ts";
import { Worker } from "../../author/worker.ts";
import { type NumberedNodes, nodeIndices } from "../nodes/node-groups.ts";
import { type Component, sizesSaid } from "./component.ts";
import type { SizedRanks } from "./sized-ranks.ts";

export type PlacementFacts = Omit<PlacementInput, "mode">;
type PlacementComponent = PlacementInput["components"][number];

/** A plan, and what `placement.mode: auto` says of it. */
export type PlannedChange = {
  readonly plan: Plan;
  readonly phase?: "profiling" | "trial" | "chosen" | undefined;
  readonly why: readonly string[];
};

/** Decides where everything runs, instead of the configured mode. */
export type Placer = {
  readonly plan: (facts: PlacementFacts, components: readonly Component[]) => PlannedChange;
  /** told what each call costs, as long as there is one */
  readonly observer?: ((call: ObservedCall) => void) | undefined;
};

/** What carries changes of the plan out. */
export type PlanTarget = {
  /** false, and nothing has changed, while calls are open */
  adopt(planned: PlannedChange): Promise<boolean>;
  /** by component; called while nothing runs */
  measureSwaps(): Promise<ReadonlyMap<string, SwapCost>>;
};

export function placementFacts(
  components: readonly Component[],
  sized: Pick<SizedRanks, "of">,
  config: RuntimeConfig,
  devices: readonly DeviceSpec[],
  /** of the devices as they are numbered */
  nodes: NumberedNodes,
  /** all that the run has had, by which expressions name and count devices for as long as it lasts */
  numbered: readonly DeviceSpec[] = devices,
): PlacementFacts {
  elasticOf(components, config); // names that are none are told at once
  const nodeGroups = nodeIndices(config.cluster, nodes);
  const explicit = Object.fromEntries(
    Object.entries(config.placement.components).map(([key, value]) => [key, String(value)]),
  );
  const { granularity, maxStaleness } = config.flow;
  const facts: PlacementFacts = {
    components: components.map(({ name, options }, index) => ({
      name,
      ...ranksOf(name, options, config),
      ...sizesOf(components[index] as Component, sized, config),
      ...(options.devicesPerRank ? { devicesPerRank: options.devicesPerRank } : {}),
      ...(options.deviceKind ? { deviceKind: options.deviceKind } : {}),
      ...(options.devices ? { devices: options.devices } : {}),
      ...(options.weight ? { weight: options.weight } : {}),
      ...(options.memoryPerDeviceMiB ? { memoryBytesPerDevice: options.memoryPerDeviceMiB * 2 ** 20 } : {}),
    })),
    ...(Object.keys(explicit).length > 0 ? { explicit } : {}),
    devices: [...devices],
    ...(numbered.length > devices.length ? { numbered: [...numbered] } : {}),
    ...(Object.keys(nodeGroups).length > 0 ? { nodeGroups } : {}),
    batchItems: config.batch,
    granularity: typeof granularity === "object" ? withoutAuto(granularity) : granularity,
    maxStaleness,
    wishes: config.placement.wishes,
  };
  const placed = withoutDevices(facts);
  for (const { name, devices } of placed.components)
    if (devices === "none") checkWithoutDevices(components.find((each) => each.name === name) as Component, config);
  return placed;
}

/** What loads onto devices would never be loaded, and what follows the nodes does so by their devices. */
function checkWithoutDevices({ name, workerClass, options }: Component, config: RuntimeConfig): void {
  const { load, onload, offload } = Worker.prototype;
  const own = workerClass.prototype as Worker;
  const loads = own.load !== load || own.onload !== onload || own.offload !== offload;
  if (!loads && (config.placement.elastic[name] ?? options.elastic) === undefined) return;
  throw new TreadleError(
    "placement.invalid",
    loads
      ? `component '${name}' cannot run without devices: its class loads onto them (load, onload or offload); give it devices`
      : `component '${name}' cannot be elastic without devices, which tell how many ranks there is room for; say their number in 'ranks', or as 'none x2' in placement.components`,
    { details: { component: name } },
  );
}

/** What follows the nodes: as launched, or as configured, which goes before. */
export function elasticOf(components: readonly Component[], config: RuntimeConfig): Set<string> {
  const { elastic } = config.placement;
  const known = components.map(({ name }) => name);
  const unknown = Object.keys(elastic).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new TreadleError(
      "placement.invalid",
      `placement.elastic names component '${unknown}', which the workflow does not launch; it has ${known.join(", ")}`,
    );
  }
  return new Set(components.filter(({ name, options }) => elastic[name] ?? options.elastic).map(({ name }) => name));
}

function sizesOf(component: Component, sized: Pick<SizedRanks, "of">, { placement }: RuntimeConfig) {
  const { name, workerClass, config } = component;
  const degrees = workerClass.degrees(config);
  if (degrees === undefined || placement.elastic[name] === undefined) return sized.of(component);
  throw new TreadleError(
    "placement.invalid",
    `placement.elastic has component '${name}' follow the nodes, and its configuration ${sizesSaid(degrees)}; drop one of the two`,
    { details: { component: name } },
  );
}

function ranksOf(name: string, options: LaunchOptions, config: RuntimeConfig): Pick<PlacementComponent, "ranks"> {
  const bounds = config.placement.elastic[name] ?? options.elastic;
  if (bounds === undefined) return options.ranks ? { ranks: options.ranks } : {};
  const { min = 1, max } = bounds;
  return { ranks: { min, ...(max === undefined ? {} : { max }) } };
}

function withoutAuto(granularity: Readonly<Record<string, number | "all" | "auto">>): Record<string, number | "all"> {
  return Object.fromEntries(
    Object.entries(granularity).filter((entry): entry is [string, number | "all"] => entry[1] !== "auto"),
  );
}
