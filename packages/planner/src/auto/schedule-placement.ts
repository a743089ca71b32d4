/** From a schedule to devices by name: the input of `resolvePlacement`, and how finely each channel is chunked. */
import type { DeviceSpec, FlowGraph, PlacementMode, Plan } from "@treadle/contracts";
import { formatDeviceNumbers } from "../placement-grammar.ts";
import { modesOfSets } from "../placement-modes.ts";
import { exactSeconds, type Limits, mostDevices } from "../plan/component-time.ts";
import type { PlanNode, PlanProblem, Schedule } from "../plan/problem.ts";
import type { Pool } from "./pools.ts";

/** One component as the schedule runs it. */
export type Share = {
  readonly component: string;
  readonly devices: readonly DeviceSpec[];
  /** of the batch that was searched for, handled at a time by all its ranks together */
  readonly items: number;
};

/** Items of a step, and of the batch that was searched for instead (`divisibleBatch`). */
export type Batches = { readonly batch: number; readonly searched: number };

/** The parts of a schedule, in order; none of a node. */
export function partsOf(schedule: Schedule): readonly Schedule[] {
  if (schedule.op === "node") return [];
  return "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
}

export const ownsDevices = (schedule: Schedule): boolean => schedule.op === "pipeline" || schedule.op === "parallel";

/**
 * Devices of every component. A part that owns devices gets a run of those of the whole, parts of wider ranks first, so
 * that their ranks do not cross nodes, and no more than its ranks can use; parts that take turns get all of them. Every
 * pool is laid out by itself. `fewer`: a component has fewer devices than it is given where it is faster on those.
 */
export function sharesOf(
  schedule: Schedule,
  problem: PlanProblem,
  pools: readonly Pool[],
  { fewer = true }: { readonly fewer?: boolean } = {},
): Share[] {
  const poolOf = new Map(pools.flatMap((pool) => pool.components.map((name) => [name, pool] as const)));
  const nodeOf = new Map(problem.nodes.map((node) => [node.id, node]));
  const members = (part: Schedule): string[] =>
    part.op === "node" ? part.node.split("+") : partsOf(part).flatMap(members);
  const shares: Share[] = [];
  for (const pool of pools) {
    const inPool = (part: Schedule): string[] => members(part).filter((name) => poolOf.get(name) === pool);
    /** devices of this pool that a part needs; `isAlone`: nobody takes turns with it there */
    const width = (part: Schedule, isAlone: boolean): number => {
      if (inPool(part).length === 0) return 0;
      if (part.op === "node") {
        const nodes = inPool(part).map((name) => nodeOf.get(name)!);
        return Math.max(...nodes.map((node) => wholeUnits(node, isAlone ? useful(node, part.devices) : part.devices)));
      }
      const owns = ownsDevices(part);
      const widths = partsOf(part).map((each) => width(each, owns));
      return owns ? widths.reduce((sum, w) => sum + w, 0) : Math.max(...widths);
    };
    const widest = (part: Schedule): number => Math.max(...inPool(part).map((name) => nodeOf.get(name)!.unit));
    const lay = (part: Schedule, run: readonly DeviceSpec[]): void => {
      if (part.op === "node") {
        const names = inPool(part);
        const nodes = names.map((name) => nodeOf.get(name)!);
        const given = Math.min(part.devices, run.length);
        const limits = { batch: problem.batch, memoryPerDevice: pool.memoryBytes };
        const count = fewer ? fastestCount(nodes, given, part.items, limits) : given;
        for (const component of names) shares.push({ component, devices: run.slice(0, count), items: part.items });
        return;
      }
      const parts = partsOf(part).filter((p) => inPool(p).length > 0);
      if (!ownsDevices(part)) {
        for (const p of parts) lay(p, run);
        return;
      }
      let at = 0;
      for (const p of [...parts].sort((a, b) => widest(b) - widest(a))) {
        const count = width(p, true);
        lay(p, run.slice(at, at + count));
        at += count;
      }
    };
    lay(schedule, pool.devices);
  }
  return shares;
}

const useful = (node: PlanNode, devices: number): number => Math.min(devices, mostDevices(node));

const wholeUnits = ({ unit }: PlanNode, devices: number): number => Math.floor(devices / unit) * unit;

/** All of `devices`, unless fewer are faster. */
function fastestCount(nodes: readonly PlanNode[], devices: number, items: number, limits: Limits): number {
  let fastest = devices;
  let least = exactSeconds(nodes, devices, items, limits);
  for (let count = devices - 1; count >= 1; count--) {
    const seconds = exactSeconds(nodes, count, items, limits);
    if (seconds < least * (1 - 1e-9)) [fastest, least] = [count, seconds];
  }
  return fastest;
}

/** Device sets in the grammar of `placement.components`. */
export function expressionsOf(shares: readonly Share[]): Record<string, string> {
  return Object.fromEntries(
    shares.map(({ component, devices }) => [component, formatDeviceNumbers(devices.map((device) => device.index))]),
  );
}

/** What the sets amount to: as they were searched for, where sets of that mode may be such. */
export function modeOfShares(shares: readonly Share[], searched: PlacementMode): PlacementMode {
  const modes = modesOfSets(shares.map(({ devices }) => devices));
  return modes.includes(searched) ? searched : modes[0]!;
}

/**
 * A channel carries what its consumers handle at a time, per rank; `all` where that is the whole batch. Consumers that
 * share a channel get what the finest of them needs. `round`: a rank takes whole items.
 */
export function granularityOf(
  shares: readonly Share[],
  { batch, searched }: Batches,
  graph: FlowGraph,
  components: Plan["components"],
  round: (items: number) => number = Math.ceil,
): Plan["granularity"] {
  const channels: Plan["granularity"]["channels"] = {};
  for (const [channel, { consumers, itemsPerStep }] of Object.entries(graph.channels)) {
    const sizes = shares
      .filter(({ component, items }) => consumers.includes(component) && items < searched)
      .map(({ component, items }) => {
        const inChannel = (((items * batch) / searched) * itemsPerStep) / graph.batch;
        return Math.max(1, round(inChannel / components[component]!.ranks.length));
      });
    if (sizes.length > 0) channels[channel] = Math.min(...sizes);
  }
  return { default: "all", channels };
}

/**
 * The same, where components of which each item goes on by itself (`stream`) take all of theirs at once: not those that take
 * turns with a neighbour chunk by chunk, which are done with a chunk before they give their devices away.
 */
export function beginningAll(
  { default: others, channels }: Plan["granularity"],
  capacity: Readonly<Record<string, number>>,
  { graph, nodes }: { readonly graph: FlowGraph; readonly nodes: readonly PlanNode[] },
): Plan["granularity"] {
  const streaming = new Set(nodes.flatMap(({ id, stream }) => (stream ? [id] : [])));
  const beginsAll = (name: string): boolean =>
    streaming.has(name) &&
    Object.values(graph.components[name]?.methods ?? {}).every(({ takes, puts }) =>
      [...takes, ...puts].every((channel) => capacity[channel] === undefined),
    );
  const kept = Object.entries(channels).filter(([channel]) => !graph.channels[channel]!.consumers.every(beginsAll));
  return { default: others, channels: Object.fromEntries(kept) };
}

/**
 * How much a channel may hold between two parts that take turns within a pipeline: one chunk, and where another way leads from
 * its producer to its consumer, as much as ranks may hold on that way until something arrives, or each would wait for the other. Without a bound a producer
 * that has all its input never waits, so that it would keep the devices for the whole batch before its consumer's turn.
 * A gang goes on only when each of its ranks has its part of a chunk, and what they hold counts until they ask for more: for it,
 * the channel has room for two such rounds. Each step has credit of its own, so this holds where steps overlap, too.
 */
export function capacityOf(
  schedule: Schedule,
  { batch, searched }: Batches,
  graph: FlowGraph,
  components: Plan["components"],
  isGang: (component: string) => boolean,
): Record<string, number> {
  const roundsOf = (consumers: readonly string[], chunk: number): number =>
    consumers.filter(isGang).reduce((most, name) => {
      const { length } = components[name]!.ranks;
      return Math.max(most, 2 * length * Math.ceil(chunk / length));
    }, chunk);
  const capacity: Record<string, number> = {};
  const isWithin = (names: readonly string[], by: readonly string[]): boolean =>
    names.some((name) => by.includes(name));
  const inCycle = graph.cycles.flat();
  const visit = (part: Schedule): readonly string[] => {
    if (part.op === "node") return part.node.split("+");
    const members = partsOf(part).map(visit);
    if (part.op === "temporal" && part.items < searched) {
      const [producing, consuming] = members as [readonly string[], readonly string[]];
      for (const [channel, { producers, consumers, itemsPerStep }] of Object.entries(graph.channels)) {
        if (!isWithin(producers, producing) || !isWithin(consumers, consuming)) continue;
        if (isWithin([...producers, ...consumers], inCycle)) continue; // those count their turns themselves
        const chunk = Math.max(1, Math.ceil((((part.items * batch) / searched) * itemsPerStep) / graph.batch));
        // A rank's part of a chunk is rounded up, so all of them together hold up to a chunk and an item for each.
        const held = Object.values(components).reduce((sum, { ranks }) => sum + chunk + ranks.length, 0);
        capacity[channel] = Math.max(hasOtherWay(channel, graph) ? held : chunk, roundsOf(consumers, chunk));
      }
    }
    return members.flat();
  };
  visit(schedule);
  return capacity;
}

/** Whether producer and consumer of a channel are connected without it, whatever the direction. */
function hasOtherWay(channel: string, { edges, channels }: FlowGraph): boolean {
  const { producers, consumers } = channels[channel]!;
  const reached = new Set(producers);
  const others = edges.filter((edge) => edge.channel !== channel);
  for (const name of reached) {
    for (const { from, to } of others) {
      if (from === name) reached.add(to);
      if (to === name) reached.add(from);
    }
  }
  return consumers.some((name) => reached.has(name));
}
