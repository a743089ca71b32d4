import type { DeviceSpec, FlowGraph } from "@treadle/contracts";
import type { PlacementComponent } from "../placement-input.ts";

/** One layout to measure: each component in turn with the others on the first devices of its kind, chunked or not. */
export type Probe = {
  /** of each component, the first so many of its kind */
  readonly devices: Readonly<Record<string, number>>;
  /** items that a rank takes at a time */
  readonly granularity: number | "all";
};

/** Chunks that the chunked probes divide each rank's part of the batch into: what a chunk costs besides its items shows. */
const probeChunks = [4, 16];
/** Where no rank has so many items. */
const fewestChunks = 2;
/** Halvings of the ranks; each restarts the processes of every component that does not resize. */
const mostHalvings = 3;

/**
 * The layouts that tell components apart (RLinf §3.4 measures at a few device counts and batch sizes): everything in turn
 * on all devices, then each component on a half, a quarter and an eighth of the ranks that it can have, and in chunks of
 * two sizes. What can use few devices is so measured on fewer than those, too. Pure.
 *
 * `graph` is known once a step has run; until then whether chunks make sense is not, and they are left out.
 */
export function planProbes(input: {
  readonly devices: readonly DeviceSpec[];
  readonly components: readonly PlacementComponent[];
  readonly graph: FlowGraph | undefined;
  /** of these nothing is to be found out */
  readonly isKnown?: (name: string) => boolean;
}): Probe[] {
  const { devices, components, graph, isKnown = () => false } = input;
  const unknown = components.filter(({ name }) => !isKnown(name));
  const firstKind = devices[0]?.kind ?? "cpu";
  const ofKind = ({ deviceKind = firstKind }: PlacementComponent) => devices.filter(({ kind }) => kind === deviceKind);
  const all = Object.fromEntries(
    components.map((component) => [component.name, Math.max(1, ofKind(component).length)]),
  );
  const probes: Probe[] = [{ devices: all, granularity: "all" }];
  const seen = new Set([ranksOf(0).join()]);
  for (let halving = 1; halving <= mostHalvings; halving++) {
    const ranks = ranksOf(halving);
    if (seen.has(ranks.join())) break;
    seen.add(ranks.join());
    const fewer = components.map((component, i): [string, number] => {
      const isWhole = component.ranks?.fixed !== undefined || isKnown(component.name);
      const { devicesPerRank = 1 } = component;
      const needed = isWhole ? undefined : firstOf(ofKind(component), ranks[i] as number, devicesPerRank);
      return [component.name, needed ?? (all[component.name] as number)];
    });
    probes.push({ devices: Object.fromEntries(fewer), granularity: "all" });
  }
  if (graph) {
    const chunked = probeChunks.map((count) => chunkOf(count, graph, unknown, all));
    const found = chunked.filter((size) => size !== undefined);
    const fewest = chunkOf(fewestChunks, graph, unknown, all);
    const sizes = new Set(found.length > 0 ? found : fewest === undefined ? [] : [fewest]);
    probes.splice(1, 0, ...[...sizes].map((granularity) => ({ devices: all, granularity })));
  }
  return probes;

  function ranksOf(halving: number): number[] {
    return components.map((component) => {
      const { devicesPerRank = 1, ranks: { min = 1, fixed } = {} } = component;
      if (fixed !== undefined || isKnown(component.name)) return fixed ?? 0;
      const most = (usableDevices(component, ofKind(component).length) ?? devicesPerRank) / devicesPerRank;
      return Math.max(min, 1, Math.floor(most) >> halving);
    });
  }
}

/** How many of the first devices hold so many ranks, none of which crosses nodes; undefined where there are too few. */
function firstOf(devices: readonly DeviceSpec[], ranks: number, devicesPerRank: number): number | undefined {
  const onNode = new Map<string, number>();
  let held = 0;
  for (const [i, { node }] of devices.entries()) {
    const count = (onNode.get(node) ?? 0) + 1;
    onNode.set(node, count);
    if (count % devicesPerRank === 0) held++;
    if (held === ranks) return i + 1;
  }
  return undefined;
}

/**
 * Devices out of `available` that the component's ranks can use without sharing any; undefined when they are too few.
 * Where the whole cluster, `total`, is too small for that they do share.
 */
export function usableDevices(component: PlacementComponent, available: number, total = available): number | undefined {
  const perRank = component.devicesPerRank ?? 1;
  const { min = 1, max = Number.POSITIVE_INFINITY, fixed } = component.ranks ?? {};
  const fits = Math.floor(available / perRank);
  if (fixed === undefined) return fits < min ? undefined : Math.min(max, fits) * perRank;
  if (fits >= fixed) return fixed * perRank;
  return available === total && available >= perRank ? available : undefined;
}

/** Items a rank takes at a time so that the one with the least to do takes `count` times. */
function chunkOf(
  count: number,
  graph: FlowGraph,
  components: readonly PlacementComponent[],
  devices: Readonly<Record<string, number>>,
): number | undefined {
  const inCycle = new Set(graph.cycles.flat());
  const chunks = components
    .filter((component) => !inCycle.has(component.name))
    .flatMap((component) => {
      const used = usableDevices(component, devices[component.name] ?? 0) ?? 1;
      const ranks = Math.max(1, used / (component.devicesPerRank ?? 1));
      const items = Object.values(graph.components[component.name]?.methods ?? {})
        .flatMap((method) => method.takes)
        .map((channel) => graph.channels[channel]?.itemsPerStep ?? 0);
      return items.filter((perStep) => perStep >= count * ranks).map((perStep) => Math.floor(perStep / count / ranks));
    });
  return chunks.length > 0 ? Math.min(...chunks) : undefined;
}
