/**
 * What a rank does in one call, as commands that a process carries out one after the other. A method that takes is a
 * loop over batches: take, compute, put; it holds its devices from first to last, as `await using` at its top does.
 */
import { equalPart, type Flow, hiddenSeconds, pieceOf, pointOf, streamedParts, turnsOf } from "@treadle/planner";
import type { BatchTimes, BatchWork } from "./durations.ts";
import type { SimulatedItem } from "./invariants.ts";
import type { ComponentModel, MethodModel, WorkflowModel } from "./workflow-model.ts";

export type Command =
  | { readonly op: "lock" }
  | { readonly op: "work"; readonly ms: number }
  /** `items` at once, or, when undefined, the rank's share of the whole stream */
  | { readonly op: "take"; readonly channel: string; readonly items: number | undefined }
  | { readonly op: "put"; readonly channel: string; readonly items: number }
  /** of what it holds of `channel`, with what was made of it; it goes on meanwhile */
  | { readonly op: "commit"; readonly channel: string; readonly items: number; readonly outputs: Flow | undefined };

/** A take is answered with its items, or with undefined at the end of the stream. */
export type RankProgram = Generator<Command, void, readonly SimulatedItem[] | undefined>;

export type ProgramContext = {
  readonly model: WorkflowModel;
  readonly durations: BatchTimes;
  readonly component: ComponentModel;
  readonly method: MethodModel;
  readonly rank: number;
  readonly step: number;
  readonly progress: CallProgress;
};

/** How far the ranks of one call have come together. */
export class CallProgress {
  /** of the call's input, 0 to 1 */
  #done = 0;
  readonly #put = new Map<string, number>();

  /** Items that are due on a channel once a further share of the input is done: outputs keep pace with inputs. */
  advance(share: number, puts: readonly Flow[]): Flow[] {
    this.#done += share;
    const due: Flow[] = [];
    for (const { channel, items } of puts) {
      const put = this.#put.get(channel) ?? 0;
      const target = Math.floor(items * this.#done + 1e-6);
      if (target <= put) continue;
      this.#put.set(channel, target);
      due.push({ channel, items: target - put });
    }
    return due;
  }
}

/** Calls that take from no channel, such as pulling weights. */
export function* serialProgram(ms: number): RankProgram {
  yield { op: "lock" };
  yield { op: "work", ms };
}

/** The runner as the consumer of what nobody else takes. */
export function* emptyingProgram(channel: string): RankProgram {
  while (yield { op: "take", channel, items: 1 });
}

export function methodProgram(context: ProgramContext): RankProgram {
  const { method } = context;
  if (method.cycle) return cycleProgram(context);
  return method.takes.length === 0 ? sourceProgram(context) : flowProgram(context);
}

/** Takes from each of its channels, then computes on what they brought together, until all of them have ended. */
function* flowProgram(context: ProgramContext): RankProgram {
  const { model, method, progress, component } = context;
  yield { op: "lock" };
  // What is done once follows the last chunk; a whole batch was measured with it.
  const onceMs = 1000 * method.share * (component.profile.onceSeconds ?? 0);
  let isChunked = false;
  const open = new Set(method.takes);
  const streamed = streamedOf(context);
  const [first] = method.takes;
  const hiddenMs =
    first && method.takes.length === 1
      ? 1000 * method.share * hiddenSeconds(component.profile, model.granularityOf(first.channel))
      : 0;
  let done = 0;
  while (open.size > 0) {
    let [ms, share, taken] = [0, 0, 0];
    /** of the batches that are worked on at once, the first: one draw holds for all of them */
    let drawnFor: Drawn | undefined;
    for (const flow of open) {
      const granularity = model.granularityOf(flow.channel);
      const batch = yield { op: "take", channel: flow.channel, items: granularity === "all" ? undefined : granularity };
      if (!batch) {
        open.delete(flow);
        continue;
      }
      const chunkShare = chunkShareOf(context, flow, batch.length);
      isChunked ||= chunkShare < 1;
      // What goes on meanwhile is answered meanwhile.
      const numAsks = streamed ? 1 : 1 + method.puts.length / method.takes.length;
      const besidesMs = chunkShare < 1 ? (onceMs * chunkShare) / method.takes.length + hiddenMs * (1 - chunkShare) : 0;
      drawnFor ??= { ordinals: batch.map((item) => item.ordinal), itemsPerStep: flow.items };
      ms += Math.max(0, batchMs(context, flow, batch.length, drawnFor) - asksMs(component, numAsks) - besidesMs);
      share += batch.length / Math.max(1, flow.items) / method.takes.length;
      taken += batch.length;
    }
    if (share === 0) continue;
    if (streamed) {
      const { channel, piece, ofTake } = streamed;
      const { ofRank, partOf } = ofTake(taken);
      if (ofRank === taken) done = 0;
      for (let left = taken; left > 0; left -= piece) {
        const items = Math.min(piece, left);
        yield { op: "work", ms: (ms * (partOf(done + items) - partOf(done)) * ofRank) / taken };
        done += items;
        const [outputs] = progress.advance((share * items) / taken, method.puts);
        yield { op: "commit", channel, items, outputs };
      }
      continue;
    }
    yield { op: "work", ms };
    for (const { channel, items } of progress.advance(share, method.puts)) yield { op: "put", channel, items };
  }
  if (isChunked && onceMs > 0) yield { op: "work", ms: onceMs };
}

/** How items of a rank go on one by one; undefined where they do not, or nobody takes them before all are there. */
function streamedOf({ model, component, method }: ProgramContext) {
  const { profile, ranks, numDevices, isGang } = component;
  const [flow] = method.takes;
  const [sink] = method.puts;
  if (!profile.streams || isGang || !flow || !sink || method.takes.length + method.puts.length > 2) return undefined;
  if (model.isBounded(sink.channel)) return undefined;
  const share = Math.max(1, flow.items / ranks.length);
  const piece = pieceOf({ items: sink.items, granularity: model.granularityOf(sink.channel) }, share);
  if (piece === undefined) return undefined;
  const granularity = model.granularityOf(flow.channel);
  /** over so many items is the work of a take spread: those of all its takes, or its own where it is the only one */
  const ofTake = (taken: number) => {
    const ofRank = taken < Math.floor(share + 1e-9) ? share : taken;
    const places = granularity === "all" ? ofRank : Math.min(ofRank, granularity);
    const partOf = streamedParts(profile, { items: ofRank, places, ranks: ranks.length, devices: numDevices });
    return { ofRank, partOf: (items: number) => partOf(items / ofRank) };
  };
  return { channel: flow.channel, piece, ofTake };
}

/** Of what a rank takes in all, in one take; 1 where it takes its part at once. */
function chunkShareOf({ component }: ProgramContext, flow: Flow, items: number): number {
  const ofRank = Math.ceil(flow.items / component.ranks.length);
  return items >= ofRank ? 1 : items / Math.max(1, ofRank);
}

/** Makes items of nothing: its part of what the step needs, in batches as its consumers take them. */
function* sourceProgram(context: ProgramContext): RankProgram {
  const { model, method, component, rank } = context;
  yield { op: "lock" };
  for (const flow of method.puts) {
    const granularity = model.granularityOf(flow.channel);
    let left = equalPart(flow.items, component.ranks.length, rank);
    while (left > 0) {
      const items = granularity === "all" ? left : Math.min(left, granularity);
      const ms = Math.max(0, batchMs(context, flow, items) - asksMs(component, 1 + method.puts.length));
      yield { op: "work", ms: ms / method.puts.length };
      yield { op: "put", channel: flow.channel, items };
      left -= items;
    }
  }
}

/** Counts its turns, since the streams of a cycle end only when their calls do. */
function* cycleProgram(context: ProgramContext): RankProgram {
  const { model, method, component, rank } = context;
  const cycle = method.cycle as NonNullable<MethodModel["cycle"]>;
  const ranks = component.ranks.length;
  const outside = (flows: readonly Flow[]) => flows.filter(({ channel }) => !cycle.channels.has(channel));
  yield { op: "lock" };
  for (const flow of outside(method.takes)) {
    const granularity = model.granularityOf(flow.channel);
    for (;;) {
      const batch = yield { op: "take", channel: flow.channel, items: granularity === "all" ? undefined : granularity };
      if (!batch) break;
      yield { op: "work", ms: turnMs(context, flow, batch.length) };
    }
  }
  for (const { take, puts } of turnsOf(cycle, method, { rank, ranks })) {
    if (take) {
      const batch = yield { op: "take", ...take };
      if (!batch) return;
      const flow = method.takes.find(({ channel }) => channel === take.channel) as Flow;
      yield { op: "work", ms: turnMs(context, flow, batch.length) };
    }
    for (const put of puts) yield { op: "put", ...put };
  }
  for (const { channel, items } of outside(method.puts)) {
    const part = equalPart(items, ranks, rank);
    if (part > 0) yield { op: "put", channel, items: part };
  }
}

type Drawn = Pick<BatchWork, "ordinals" | "itemsPerStep">;

function batchMs(
  { model, durations, component, method, step }: ProgramContext,
  flow: Flow,
  count: number,
  drawnFor: Drawn = { ordinals: [], itemsPerStep: flow.items },
): number {
  const { batch } = model;
  const { concurrency, numDevices, profile, ranks } = component;
  const { items, devices } = pointOf(profile, {
    share: count / Math.max(1, flow.items),
    itemsPerStep: Math.max(1, flow.items),
    ranks: ranks.length,
    ...{ concurrency, devices: numDevices, batch },
  });
  // What is taken from several channels is worked on at once: each of them has its part of the time.
  const parts = Math.max(1, method.takes.length);
  return (method.share * durations.batchMs({ component, step, items, devices, ...drawnFor, batch })) / parts;
}

/** What was measured of a chunk has its take and its puts, which a process does as messages of their own. */
const asksMs = ({ profile }: ComponentModel, times: number): number => 1000 * times * (profile.askSeconds ?? 0);

/** Profiles have cycles as wholes: a turn takes its part of the whole time. */
function turnMs({ model, durations, component, method, step }: ProgramContext, flow: Flow, items: number): number {
  const whole = durations.batchMs({
    component,
    step,
    items: model.batch,
    devices: component.numDevices,
    ordinals: [],
    itemsPerStep: flow.items,
    batch: model.batch,
  });
  const turnMs =
    (method.share * whole * items * component.concurrency) / Math.max(1, flow.items) / Math.max(1, method.takes.length);
  return Math.max(0, turnMs - asksMs(component, 2));
}
