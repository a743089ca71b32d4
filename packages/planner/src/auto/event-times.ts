/** What happens when, in a replay: earliest first, and at the same time in the order of asking, ends of calls last. */

type Event = { readonly at: number; readonly isEnd: boolean; readonly order: number; readonly run: () => void };

/** Of a second: sums of the same seconds in another order meet. */
const grid = 1e10;

export class EventTimes {
  now = 0;
  readonly #heap: Event[] = [];
  #order = 0;

  after(seconds: number, run: () => void): void {
    this.#push(Math.round((this.now + seconds) * grid) / grid, false, run);
  }

  /** Whoever waits for the last items of a call has them before whoever waits for its end. */
  atEnd(run: () => void): void {
    this.#push(this.now, true, run);
  }

  /** All that is due next, and so happens at once; false when nothing is. */
  runNext(): boolean {
    const next = this.#pop();
    if (next === undefined) return false;
    this.now = next.at;
    next.run();
    for (let [same] = this.#heap; same?.at === next.at && same.isEnd === next.isEnd; [same] = this.#heap)
      this.#pop()?.run();
    return true;
  }

  #push(at: number, isEnd: boolean, run: () => void): void {
    const heap = this.#heap;
    heap.push({ at, isEnd, order: this.#order++, run });
    for (let i = heap.length - 1; i > 0; ) {
      const parent = (i - 1) >> 1;
      if (!this.#isBefore(i, parent)) break;
      this.#swap(i, parent);
      i = parent;
    }
  }

  #pop(): Event | undefined {
    const heap = this.#heap;
    if (heap.length === 0) return undefined;
    this.#swap(0, heap.length - 1);
    const first = heap.pop();
    for (let i = 0; ; ) {
      const [left, right] = [2 * i + 1, 2 * i + 2];
      let least = i;
      if (left < heap.length && this.#isBefore(left, least)) least = left;
      if (right < heap.length && this.#isBefore(right, least)) least = right;
      if (least === i) return first;
      this.#swap(i, least);
      i = least;
    }
  }

  #isBefore(a: number, b: number): boolean {
    const [first, second] = [this.#heap[a]!, this.#heap[b]!];
    if (first.at !== second.at) return first.at < second.at;
    if (first.isEnd !== second.isEnd) return second.isEnd;
    return first.order < second.order;
  }

  #swap(a: number, b: number): void {
    const heap = this.#heap;
    [heap[a], heap[b]] = [heap[b]!, heap[a]!];
  }
}
