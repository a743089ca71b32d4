/**
 * Builds the batches that a stream can deliver now, by the channel's policy (C5), within the takes' bounds (C2), and in rounds
 * to ranks that take together (C8).
 */
import type { ItemView } from "./channel-messages.ts";
import { dealByWeight } from "./deal-by-weight.ts";
import type { PickPolicy, TakeView } from "./pick-policy.ts";
import type { Item } from "./stream-queue.ts";
import type { StreamState, TakeState } from "./stream-state.ts";

export type Batch = { readonly take: TakeState; readonly items: Item[]; weight: number };

/**
 * Takes what it returns out of the stream's queue. A take that cannot be filled is passed over, so that one waiting
 * for many items does not hold up one that wants few. `mustPick` overrules a policy that declines.
 */
export function fillBatches(stream: StreamState, policy: PickPolicy, mustPick: boolean): Batch[] {
  const batches: Batch[] = [];
  const { compareTakes, share, spread } = policy;
  let order: readonly TakeState[] = stream.takes.filter(({ inGang }) => !inGang);
  if (compareTakes && order.length > 1) {
    const views = new Map(order.map((take) => [take, viewOf(stream, take, 0)]));
    order = [...order].sort((a, b) => compareTakes(views.get(a) as TakeView, views.get(b) as TakeView));
  }
  const dealt = spread === true && order.length > 1;
  for (const take of order) {
    if (!stream.canFill(take)) continue;
    const batch: Batch = { take, items: [], weight: 0 };
    const { parts } = take;
    const select = share && parts !== undefined ? (items: readonly ItemView[]) => share(items, parts) : policy.select;
    if (select) pick(stream, batch, select);
    if (!select || (mustPick && batch.items.length === 0)) fill(stream, batch, dealt ? take.min : take.maxItems);
    if (batch.items.length > 0) batches.push(batch);
  }
  if (dealt)
    deal(
      stream,
      batches.filter(({ take }) => take.parts === undefined),
      compareTakes,
    );
  for (const takes of stream.gatheredGangs()) batches.push(...fillRound(stream, takes, policy, mustPick));
  return batches;
}

/**
 * C8: the policy says what is in the round, and weights say which rank gets it. It has all that its ranks ask for together, or
 * what there is where no more will come: at the end, and where they ask for all of a stream that is full. A rank for which nothing
 * is left gets an empty batch.
 */
function fillRound(stream: StreamState, takes: readonly TakeState[], policy: PickPolicy, mustPick: boolean): Batch[] {
  const { queue } = stream;
  const first = takes[0] as TakeState;
  const maxItems = takes.reduce((sum, take) => sum + take.maxItems, 0);
  const available = queue.availableItems(first.call.call);
  const isWhole = available >= maxItems || stream.isSealed() || (mustPick && maxItems === Number.POSITIVE_INFINITY);
  if (available === 0 || !isWhole) return [];
  const round: Batch = { take: { ...first, maxItems }, items: [], weight: 0 };
  if (policy.select) pick(stream, round, policy.select);
  if (!policy.select || (mustPick && round.items.length === 0)) fill(stream, round, maxItems);
  if (round.items.length === 0 && maxItems > 0) return [];
  const weights = round.items.map(({ weight }) => weight);
  return dealByWeight(weights, takes.length).map((part, rank) => ({
    take: takes[rank] as TakeState,
    items: part.map((index) => round.items[index] as Item),
    weight: part.reduce((sum, index) => sum + (weights[index] as number), 0),
  }));
}

function fill(stream: StreamState, batch: Batch, untilItems: number): void {
  while (batch.items.length < untilItems) {
    const item = nextThatFits(stream, batch);
    if (item === undefined) return;
    add(stream, batch, item);
  }
}

/**
 * One item at a time to whichever batch comes first with what it already has. Of a call's several batches only the last
 * grows: the earlier ones reach the call first and must not hold later items of a key (C2).
 */
function deal(stream: StreamState, batches: readonly Batch[], compare: PickPolicy["compareTakes"]): void {
  const open = new Set(new Map(batches.map((batch) => [batch.take.call, batch])).values());
  while (open.size > 0) {
    let first: Batch | undefined;
    let firstView: TakeView | undefined;
    for (const batch of open) {
      const view = viewOf(stream, batch.take, batch.weight);
      if (firstView && (!compare || compare(view, firstView) >= 0)) continue;
      first = batch;
      firstView = view;
    }
    const batch = first as Batch;
    const item = batch.items.length < batch.take.maxItems ? nextThatFits(stream, batch) : undefined;
    if (item === undefined) open.delete(batch);
    else add(stream, batch, item);
  }
}

/** Follows the policy's choice as far as the bounds and the order within keys allow. */
function pick(stream: StreamState, batch: Batch, select: NonNullable<PickPolicy["select"]>): void {
  const { take } = batch;
  const candidates = stream.queue.candidates(take.call.call, take.key);
  for (const index of select(candidates, viewOf(stream, take, 0))) {
    const item = candidates[index];
    if (!item?.queued || batch.items.length >= take.maxItems) continue;
    if (item.key !== undefined && stream.queue.front(take.call.call, item.key) !== item) continue;
    if (batch.items.length > 0 && batch.weight + item.weight > take.maxWeight) continue;
    add(stream, batch, item);
  }
}

function nextThatFits(stream: StreamState, { take, items, weight }: Batch): Item | undefined {
  const item = stream.queue.front(take.call.call, take.key);
  if (item === undefined) return undefined;
  return items.length > 0 && weight + item.weight > take.maxWeight ? undefined : item;
}

function add(stream: StreamState, batch: Batch, item: Item): void {
  stream.queue.take(item, batch.take.call.call);
  batch.items.push(item);
  batch.weight += item.weight;
}

function viewOf(stream: StreamState, { call, min, maxItems, maxWeight }: TakeState, extraWeight: number): TakeView {
  const loadWeight = (stream.loads.get(call.worker) ?? 0) + extraWeight;
  return { call: call.call, worker: call.worker, min, maxItems, maxWeight, loadWeight };
}
