import type { DeviceSpec, FlowGraph } from "@treadle/contracts";
import type { PlacementComponent } from "../placement-input.ts";

/** One layout to measure: all components in turn on the first devices of each kind, chunked or not. */
export type Probe = {
  /** of each kind, the first so many */
  readonly devices: Readonly<Record<string, number>>;
  /** items that a rank takes at a time */
  readonly granularity: number | "all";
};

/** Chunks that the chunked probes divide each rank's part of the batch into: what a chunk costs besides its items shows. */
const probeChunks = [4, 16];
/** Halvings of the device count; each is a restart of every process. */
const mostHalvings = 3;

/**
 * The layouts that tell components apart (RLinf §3.4 measures at a few device counts and batch sizes): everything in turn
 * on all devices, on a half, a quarter and an eighth of them where that changes anybody's ranks, and in chunks of two
 * sizes. Pure.
 *
 * `graph` is known once a step has run; until then whether chunks make sense is not, and they are left out.
 */
export function planProbes(input: {
  readonly devices: readonly DeviceSpec[];
  readonly components: readonly PlacementComponent[];
  readonly graph: FlowGraph | undefined;
}): Probe[] {
  const totals = new Map<string, number>();
  for (const { kind } of input.devices) totals.set(kind, (totals.get(kind) ?? 0) + 1);
  const firstKind = input.devices[0]?.kind ?? "cpu";
  const probes: Probe[] = [];
  const seen = new Set<string>();
  for (let halving = 0; halving <= mostHalvings; halving++) {
    const devices = Object.fromEntries([...totals].map(([kind, count]) => [kind, Math.max(1, count >> halving)]));
    const used = input.components.map((component) =>
      usableDevices(
        component,
        devices[component.deviceKind ?? firstKind] ?? 0,
        totals.get(component.deviceKind ?? firstKind),
      ),
    );
    if (used.some((count) => count === undefined)) break;
    if (seen.has(used.join())) continue;
    seen.add(used.join());
    probes.push({ devices, granularity: "all" });
  }
  const widest = probes[0];
  if (widest && input.graph) {
    const { graph, components } = input;
    const chunked = probeChunks.map((count) => chunkOf(count, graph, components, widest.devices, firstKind));
    const sizes = new Set(chunked.filter((size) => size !== undefined));
    probes.splice(1, 0, ...[...sizes].map((granularity) => ({ ...widest, granularity })));
  }
  return probes;
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
  firstKind: string,
): number | undefined {
  const inCycle = new Set(graph.cycles.flat());
  const chunks = components
    .filter((component) => !inCycle.has(component.name))
    .flatMap((component) => {
      const used = usableDevices(component, devices[component.deviceKind ?? firstKind] ?? 0) ?? 1;
      const ranks = Math.max(1, used / (component.devicesPerRank ?? 1));
      const items = Object.values(graph.components[component.name]?.methods ?? {})
        .flatMap((method) => method.takes)
        .map((channel) => graph.channels[channel]?.itemsPerStep ?? 0);
      return items.filter((perStep) => perStep >= count * ranks).map((perStep) => Math.floor(perStep / count / ranks));
    });
  return chunks.length > 0 ? Math.min(...chunks) : undefined;
}
