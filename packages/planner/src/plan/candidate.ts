import type { Cut, Objective, PlanSet } from "./model.ts";

export type Stage = { readonly set: PlanSet; readonly level: number };

/** How a state's value may come about. `count` is the number of chunks; 0 is side by side, -1 temporal. */
export type Candidate = {
  bound: number;
  readonly cut: Cut;
  readonly itemsIndex: number;
  readonly count: number;
  /** levels that both parts of the cut have together, and the range of those of the first */
  readonly level: number;
  readonly low: number;
  readonly high: number;
  /** stages before the cut (only with "kway"), fixed */
  readonly before: readonly Stage[];
  /** whether the second part may still be cut into further stages */
  readonly open: boolean;
};

/** Levels of the second part when the first has `low`. */
export const restOf = (cut: Cut, level: number, low: number): number => (cut.free ? level : level - low);

export function stagesOf({ cut, count, level, low, before }: Candidate): Stage[] {
  if (count < 0) {
    return [
      { set: cut.turnFirst, level },
      { set: cut.turnSecond, level },
    ];
  }
  return [...before, { set: cut.first, level: low }, { set: cut.second, level: restOf(cut, level, low) }];
}

export function totalSeconds(objective: Objective, sum: number, max: number, count: number, swap: number): number {
  if (count < 0) return sum + swap;
  if (count === 0) return max;
  if (objective === "busy") return count * max;
  return count === 1 ? sum : sum + (count - 1) * max;
}

/** The largest seconds of one part, beside others with `sum` and `max`, for which the total can still be below `best`. */
export function largestUseful(
  objective: Objective,
  best: number,
  sum: number,
  max: number,
  count: number,
  swap: number,
): number {
  if (count < 0) return best - swap - sum;
  if (count === 0) return best;
  if (objective === "busy") return best / count;
  // Up to `max` it only adds to the sum; above it is the bottleneck.
  return best <= sum + count * max ? best - sum - (count - 1) * max : (best - sum) / count;
}

/** Candidates in a binary heap, the least bound first. */
export function push(heap: Candidate[], candidate: Candidate): void {
  let i = heap.length;
  heap.push(candidate);
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (heap[parent]!.bound <= candidate.bound) break;
    heap[i] = heap[parent]!;
    i = parent;
  }
  heap[i] = candidate;
}

export function pop(heap: Candidate[]): Candidate {
  const top = heap[0]!;
  const last = heap.pop()!;
  if (heap.length > 0) {
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && heap[child + 1]!.bound < heap[child]!.bound) child++;
      if (heap[child]!.bound >= last.bound) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = last;
  }
  return top;
}
