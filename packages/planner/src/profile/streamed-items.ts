/**
 * How items come out of a worker that streams: lognormal lengths, each of which ends by itself and leaves its place to the
 * next one. Deterministic: lengths are quantiles, in an order without a pattern. Pure.
 */
import { expectedLongest, normalQuantile } from "./longest-item.ts";

export type StreamedItems = {
  readonly count: number;
  /** that are worked on at once */
  readonly places: number;
  /** standard deviation of the logarithm of their lengths */
  readonly spread: number;
  /** seconds of a place or more, for each median length */
  readonly perLength: number;
  /** seconds of an item of mean length, besides those */
  readonly perItem: number;
};

/** More are taken for so many, with as many fewer places. */
const mostItems = 64;
/** Orders that are averaged over. */
const numOrders = 4;
const goldenRatio = (Math.sqrt(5) - 1) / 2;

const known = new Map<string, readonly number[]>();
const mostKnown = 4096;

function remembered(key: string, make: () => readonly number[]): readonly number[] {
  const found = known.get(key) ?? make();
  if (known.size >= mostKnown) known.clear();
  known.set(key, found);
  return found;
}

/** Median lengths until the last of `count` items has ended, `places` of them at a time. */
export function streamedLengths(count: number, places: number, spread: number): number {
  if (places >= count) return expectedLongest(count, spread);
  const work = (count * Math.exp(spread ** 2 / 2)) / places;
  if (places <= 1) return work;
  const [tail = 0] = remembered(`lengths ${count} ${places} ${spread}`, () => {
    const scale = Math.min(1, (16 * mostItems) / count);
    const [few, at] = [Math.max(2, Math.round(count * scale)), Math.max(1, Math.round(places * scale))];
    const tails = Array.from({ length: numOrders }, (_, order) => {
      const lengths = lengthsOf(few, spread, order);
      return lastEnd(lengths, at) - lengths.reduce((sum, each) => sum + each, 0) / at;
    });
    return [tails.reduce((sum, each) => sum + each, 0) / numOrders];
  });
  return Math.max(work + tail, expectedLongest(count, spread));
}

/** The part of the time after which each part of the items has ended: ascending, the last one 1. */
export function endsOf(items: StreamedItems): readonly number[] {
  const { spread, perLength, perItem } = items;
  const scale = Math.min(1, mostItems / Math.max(1, items.count));
  const count = Math.max(1, Math.round(items.count * scale));
  const places = Math.min(count, Math.max(1, Math.round(items.places * scale)));
  // By how much a place more slows all, against what a place takes alone.
  const slowing = perItem / scale / Math.exp(spread ** 2 / 2);
  const total = perLength + slowing;
  const [alone, each] = total > 0 ? [perLength / total, slowing / total] : [1, 0];
  return remembered(`ends ${count} ${places} ${spread} ${each.toPrecision(6)}`, () => {
    const left = lengthsOf(count, spread, 0);
    const running = left.splice(0, places);
    const ends: number[] = [];
    let now = 0;
    while (running.length > 0) {
      const next = Math.min(...running);
      now += next * (alone + each * running.length);
      for (let i = running.length - 1; i >= 0; i--) {
        running[i]! -= next;
        if (running[i]! > 1e-12) continue;
        ends.push(now);
        const [following] = left.splice(0, 1);
        if (following === undefined) running.splice(i, 1);
        else running[i] = following;
      }
    }
    return ends.map((end) => end / now);
  });
}

/** Quantiles of one length each, in the order of multiples of the golden ratio. */
function lengthsOf(count: number, spread: number, order: number): number[] {
  const turned = Array.from({ length: count }, (_, i) => ((i + 1) * goldenRatio + order / numOrders) % 1);
  const ranks = turned.map((_, i) => i).sort((a, b) => turned[a]! - turned[b]!);
  const lengths = new Array<number>(count);
  for (const [rank, i] of ranks.entries()) lengths[i] = Math.exp(spread * normalQuantile((rank + 0.5) / count));
  return lengths;
}

/** Each goes to the place that is free first. */
function lastEnd(lengths: readonly number[], places: number): number {
  const heap = new Float64Array(places);
  for (const length of lengths) {
    heap[0]! += length;
    for (let i = 0; ; ) {
      let least = i;
      for (const child of [2 * i + 1, 2 * i + 2]) if (child < places && heap[child]! < heap[least]!) least = child;
      if (least === i) break;
      [heap[i], heap[least]] = [heap[least]!, heap[i]!];
      i = least;
    }
  }
  return Math.max(...heap);
}
