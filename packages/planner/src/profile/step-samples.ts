import type { FlowGraph, ObservedCall, WorkerMemory } from "@treadle/contracts";
import type { Asks } from "./asks.ts";

/** How a component ran when it was measured. */
export type ComponentLayout = {
  readonly devices: number;
  readonly ranks: number;
  /** its devices are slots for processes that compute here */
  readonly isOnProcessors: boolean;
};

/** What one step says of one component. */
export type StepSample = {
  readonly component: string;
  readonly devices: number;
  /** of the step's batch, handled at a time over all ranks */
  readonly items: number;
  readonly seconds: number;
  /** processor seconds for each of these seconds; 0 for what runs on other devices */
  readonly processorShare: number;
  /** as in the profile */
  readonly unevenness?: number | undefined;
  /** others had the processors for a good part of it: the seconds are what it would have taken alone */
  readonly isContended: boolean;
};

export type StepCosts = {
  readonly samples: readonly StepSample[];
  /** by component: of one take of items that are there, or a put that finds room */
  readonly askSeconds: ReadonlyMap<string, number>;
  /**
   * by component: processor seconds in calls that use channels, on all ranks together; without those beside the work, of
   * compilers and collectors in threads of their own
   */
  readonly processorSeconds: ReadonlyMap<string, number>;
  /** by component: seconds outside of the batches of such calls */
  readonly onceSeconds: ReadonlyMap<string, number>;
  /** by component: seconds in calls that use no channel */
  readonly serialSeconds: ReadonlyMap<string, number>;
  /** by component, where it was swapped: seconds of one swap */
  readonly onloadSeconds: ReadonlyMap<string, number>;
  readonly offloadSeconds: ReadonlyMap<string, number>;
  /** by component: of its fullest rank, on each of its devices, which are so many over all ranks */
  readonly memory: ReadonlyMap<string, WorkerMemory & { readonly devices: number }>;
  /** by component that puts: standard deviation of the logarithm of its items' bytes */
  readonly lengthSpread: ReadonlyMap<string, number>;
  /** components whose items go on one by one */
  readonly streams: ReadonlySet<string>;
};

/** Work that keeps a processor busy gets less than this share of its time only when others take the rest… */
const freeShare = 0.85;
/** …and work that gets less than this of a processor sleeps: twenty others on two cores still leave more. */
export const processorBoundShare = 0.1;
/**
 * Where nobody counts how long work waits for a processor, processor seconds stand for a sample from this share on. Below it, work that sleeps for some milliseconds and passes
 * messages looks the same as work that others disturbed much, and its processor seconds would be nothing of its time.
 */
const leastDisturbedShare = 0.3;
/**
 * What a turn costs besides its chunks, which have their own takes and puts: the call and its reply, the lock, and to learn of the
 * end of the stream.
 */
export const asksPerTurn = 3;
/** Clocks of what ran between waits say nothing any more. */
const leastFreeShare = 0.02;

/** What the calls of one step cost each component: on its busiest rank, for the whole batch or for one chunk. Pure. */
export function costsOfStep(
  calls: readonly ObservedCall[],
  layouts: ReadonlyMap<string, ComponentLayout>,
  graph: FlowGraph,
  asked: Asks,
): StepCosts {
  const samples: StepSample[] = [];
  const askSeconds = new Map<string, number>();
  const processorSeconds = new Map<string, number>();
  const onceSeconds = new Map<string, number>();
  const serialSeconds = new Map<string, number>();
  const onloadSeconds = new Map<string, number>();
  const offloadSeconds = new Map<string, number>();
  const memory = new Map<string, WorkerMemory & { readonly devices: number }>();
  const lengthSpread = new Map<string, number>();
  const streams = new Set<string>();
  const inCycle = new Set(graph.cycles.flat());
  for (const [component, layout] of layouts) {
    const own = calls.filter((call) => call.component === component);
    const most = (of: (call: ObservedCall) => number) => Math.max(0, ...own.map(of));
    const [fullest] = own.toSorted((a, b) => b.memoryBytes - a.memoryBytes);
    if (fullest)
      memory.set(component, {
        ...{ memoryBytes: fullest.memoryBytes, tags: fullest.tags },
        devices: layout.devices,
      });
    if (most((call) => call.onloadMs) > 0) onloadSeconds.set(component, most((call) => call.onloadMs) / 1000);
    if (most((call) => call.offloadMs) > 0) offloadSeconds.set(component, most((call) => call.offloadMs) / 1000);
    const spread = spreadOf(own);
    if (spread !== undefined) lengthSpread.set(component, spread);
    if (own.some(({ channels }) => channels.some(({ streamed }) => streamed))) streams.add(component);
    const flowing = own.filter((call) => call.channels.length > 0);
    const serial = own.filter((call) => call.channels.length === 0);
    serialSeconds.set(component, busiest(serial) / 1000);
    processorSeconds.set(component, flowing.reduce((sum, call) => sum + Math.min(call.cpuMs, call.busyMs), 0) / 1000);
    if (flowing.length === 0) continue;
    const { ofTime, processorShare } = layout.isOnProcessors ? aloneOf(flowing) : onOtherDevices;
    const isContended = ofTime < 1;
    const common = { component, devices: layout.devices, processorShare, isContended };
    const isInCycle = inCycle.has(component);
    if (!isInCycle) onceSeconds.set(component, (busiest(flowing.map(besidesBatches)) * ofTime) / 1000);
    const chunk = isInCycle ? undefined : chunkOf(flowing, layout, graph);
    const { items, seconds } = chunk ?? { items: graph.batch, seconds: busiest(flowing) / 1000 };
    const working = isInCycle || chunk ? layout.ranks : workingRanks(flowing, layout.ranks);
    // In a pipeline its bottleneck asks for every chunk, and passes it on; in a cycle everybody waits for every message.
    const asks = asked.ofCalls(flowing);
    const askingMs = isInCycle ? turnsMs(flowing, asks) : asks.reduce((sum, ms) => sum + ms, 0);
    if (asks.length > 0) askSeconds.set(component, (isInCycle ? Math.min(...asks) : askingMs / asks.length) / 1000);
    // That slots may share cores is for the plan to count.
    const unevenness = isInCycle || chunk ? undefined : unevennessOf(flowing);
    samples.push({
      ...common,
      devices: (layout.devices * working) / layout.ranks,
      items,
      seconds: (seconds + askingMs / 1000) * ofTime,
      unevenness,
    });
  }
  return {
    samples,
    askSeconds,
    processorSeconds,
    onceSeconds,
    serialSeconds,
    onloadSeconds,
    offloadSeconds,
    memory,
    lengthSpread,
    streams,
  };
}

function spreadOf(calls: readonly ObservedCall[]): number | undefined {
  let [items, sum, squares] = [0, 0, 0];
  for (const { role, items: moved, logBytes } of calls.flatMap((call) => call.channels)) {
    if (role !== "sink" || !logBytes) continue;
    items += moved;
    sum += logBytes[0];
    squares += logBytes[1];
  }
  return items > 1 ? Math.sqrt(Math.max(0, squares / items - (sum / items) ** 2)) : undefined;
}

/** Milliseconds of the rank that was busy longest. */
function busiest(calls: readonly ObservedCall[]): number {
  const byRank = new Map<number, number>();
  for (const { rank, busyMs } of calls) byRank.set(rank, (byRank.get(rank) ?? 0) + busyMs);
  return Math.max(0, ...byRank.values());
}

/**
 * Ranks that a whole batch was on. Where there were fewer chunks than ranks, the busiest has more than its fair share of all, and those
 * that got nothing say nothing of what so many would take.
 */
function workingRanks(calls: readonly ObservedCall[], ranks: number): number {
  const byChannel = new Map<string, Map<number, number>>();
  for (const { rank, channels } of calls)
    for (const { channel, role, items } of channels) {
      if (role !== "source" || items === 0) continue;
      const taken = byChannel.get(channel) ?? new Map<number, number>();
      byChannel.set(channel, taken.set(rank, (taken.get(rank) ?? 0) + items));
    }
  const working = [...byChannel.values()].map((taken) => {
    const items = [...taken.values()];
    const all = items.reduce((sum, each) => sum + each, 0);
    return Math.max(...items) > Math.ceil(all / ranks) ? items.length : ranks;
  });
  return Math.max(0, ...working) || ranks;
}

/**
 * How many times as long the busiest rank took as the largest fair share of whole items takes on average, of ranks with any items:
 * undefined where fewer than two have them. One that takes longest for fewer items than others is no more uneven than that.
 */
function unevennessOf(calls: readonly ObservedCall[]): number | undefined {
  const byRank = new Map<number, { busyMs: number; items: number }>();
  const counted = new Set<string>();
  for (const { rank, busyMs, channels } of calls) {
    const isTaking = channels.some(({ role }) => role === "source");
    const ends = channels.filter(({ role }) => !isTaking || role === "source");
    for (const { channel } of ends) counted.add(channel);
    const items = ends.reduce((sum, each) => sum + each.items, 0);
    const known = byRank.get(rank) ?? { busyMs: 0, items: 0 };
    byRank.set(rank, { busyMs: known.busyMs + busyMs, items: known.items + items });
  }
  const ranks = [...byRank.values()].filter(({ items, busyMs }) => items > 0 && busyMs > 0);
  const [most] = ranks.toSorted((a, b) => b.busyMs - a.busyMs);
  if (most === undefined || ranks.length < 2) return undefined;
  const all = ranks.reduce((sum, { busyMs, items }) => ({ busyMs: sum.busyMs + busyMs, items: sum.items + items }));
  const largestShare = counted.size * Math.ceil(all.items / counted.size / ranks.length);
  return Math.max(1, (most.busyMs / largestShare) * (all.items / all.busyMs));
}

/**
 * One chunk, where ranks took the batch in several: its busy time, with its share of what the calls cost besides, so that
 * all chunks together have all of it. Of each channel whose batches they are, chunks of the size that carried most items
 * count, and smaller ones for no more than those; methods that follow different channels each have their part.
 */
function chunkOf(
  calls: readonly ObservedCall[],
  layout: ComponentLayout,
  graph: FlowGraph,
): { items: number; seconds: number } | undefined {
  const batches = calls.flatMap((call) => call.batches);
  const channels = [...new Set(batches.map(({ channel }) => channel))];
  const parts = channels.map((channel) =>
    commonChunk(
      batches.filter((batch) => batch.channel === channel),
      graph.channels[channel]?.itemsPerStep ?? 0,
      layout.ranks,
    ),
  );
  if (parts.length === 0 || parts.some((part) => part === undefined)) return undefined;
  const known = parts as CommonChunk[];
  if (known.every(({ times }) => times <= layout.ranks)) return undefined;
  const share = Math.min(...known.map((part) => part.share));
  const chunksMs = known.reduce((sum, part) => sum + (part.busyMs * share) / part.share, 0);
  const leftMs = known.reduce((sum, part) => sum + part.leftMs, 0) / layout.ranks;
  const besides = calls.map(besidesBatches);
  return { items: share * graph.batch, seconds: (chunksMs + (leftMs + busiest(besides)) * share) / 1000 };
}

/** What of a call is in none of its batches; nothing where it has none. */
function besidesBatches(call: ObservedCall): ObservedCall {
  if (call.batches.length === 0) return { ...call, busyMs: 0 };
  return { ...call, busyMs: Math.max(0, call.busyMs - call.batches.reduce((sum, { busyMs }) => sum + busyMs, 0)) };
}

/**
 * `times`: all batches, on all ranks. `share`: of the step's items, in one chunk over all ranks. `busyMs`: of a chunk.
 * `leftMs`: what other batches took beyond what chunks of their size take, on all ranks together.
 */
type CommonChunk = {
  readonly times: number;
  readonly share: number;
  readonly busyMs: number;
  readonly leftMs: number;
};

function commonChunk(batches: ObservedCall["batches"], itemsPerStep: number, ranks: number): CommonChunk | undefined {
  const bySize = new Map<number, { items: number; times: number; busyMs: number }>();
  for (const { items, times, busyMs } of batches) {
    const found = bySize.get(items) ?? { items, times: 0, busyMs: 0 };
    bySize.set(items, { items, times: found.times + times, busyMs: found.busyMs + busyMs });
  }
  const [common, ...others] = [...bySize.values()].toSorted((a, b) => b.items * b.times - a.items * a.times);
  if (!common || itemsPerStep === 0) return undefined;
  const busyMs = common.busyMs / common.times;
  const asCommon = ({ items, times }: typeof common): number => times * busyMs * Math.max(1, items / common.items);
  return {
    times: [common, ...others].reduce((sum, { times }) => sum + times, 0),
    share: Math.min(1, (common.items * ranks) / itemsPerStep),
    busyMs,
    leftMs: others.reduce((sum, other) => sum + Math.max(0, other.busyMs - asCommon(other)), 0),
  };
}

/** What the turns of a cycle cost besides work: everybody waits for every message in turn. */
function turnsMs(calls: readonly ObservedCall[], asks: readonly number[]): number {
  if (asks.length === 0) return 0;
  const times = calls.map((call) => call.channels.reduce((sum, each) => sum + each.times, 0));
  return Math.min(...asks) * Math.max(...times);
}

/** `ofTime`: of the seconds that work took, those that it would have taken alone; of these, processor seconds. */
type Alone = { readonly ofTime: number; readonly processorShare: number };

const onOtherDevices: Alone = { ofTime: 1, processorShare: 0 };

/**
 * Where the time that work waits for a processor is counted, the rest is what it takes alone, whether it computes or waits
 * for something else. Elsewhere work is taken to compute, and its processor seconds to be all that it takes.
 */
function aloneOf(calls: readonly ObservedCall[]): Alone {
  const busyMs = Math.max(
    1e-9,
    calls.reduce((sum, call) => sum + call.busyMs, 0),
  );
  const share = calls.reduce((sum, call) => sum + call.cpuMs, 0) / busyMs;
  if (calls.every((call) => call.queuedMs !== undefined)) {
    const free = 1 - Math.min(1, calls.reduce((sum, call) => sum + (call.queuedMs ?? 0), 0) / busyMs);
    const ofTime = free < freeShare ? Math.max(leastFreeShare, free) : 1;
    return { ofTime, processorShare: share / ofTime };
  }
  if (share <= leastDisturbedShare || share >= freeShare) return { ofTime: 1, processorShare: share };
  return { ofTime: share, processorShare: 1 };
}
