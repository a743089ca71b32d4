import type { Elastic } from "./queued-action.ts";

/** Replaces the least value of a binary min-heap. */
export function replaceLeast(heap: Float64Array, size: number, value: number): void {
  let i = 0;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= size) break;
    if (child + 1 < size && heap[child + 1]! < heap[child]!) child++;
    if (heap[child]! >= value) break;
    heap[i] = heap[child]!;
    i = child;
  }
  heap[i] = value;
}

/**
 * ARL-Tangram Algorithm 2: what the actions left behind will add, if each takes its least units as soon as the next
 * running action ends. The first of them also tries its second, ... `depth`-th allowed number of units.
 *
 * Every completion counts as one slot, however many units it frees; that is the paper's approximation, kept here.
 * Repairs: each trial pops from its own copy of the heap (the pseudo code pops the shared one, so that every trial
 * after the first sees completions that have been used up); no completion at all means that a slot is free now.
 * Returns early with something of at least `bound` once the sum cannot stay below it.
 */
export function estimateBySlots(
  completions: Float64Array,
  rest: readonly Elastic[],
  depth: number,
  bound: number,
): number {
  if (rest.length === 0) return 0;
  const sorted = completions.length === 0 ? new Float64Array(1) : Float64Array.from(completions).sort();
  const firstSeconds = rest[0]!.choices.seconds;
  let best = Number.POSITIVE_INFINITY;
  for (let d = 0; d < Math.min(depth, firstSeconds.length); d++) {
    // An ascending array is a heap.
    const heap = sorted.slice();
    let sum = 0;
    for (let i = 0; i < rest.length && sum < Math.min(bound, best); i++) {
      const ends = heap[0]! + (i === 0 ? firstSeconds[d]! : rest[i]!.choices.seconds[0]!);
      sum += ends;
      replaceLeast(heap, heap.length, ends);
    }
    if (sum < best) best = sum;
  }
  return best;
}
