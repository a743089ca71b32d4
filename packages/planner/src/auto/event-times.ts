/** What happens when, in a replay: earliest first, and of the same time in the order of asking. */
export class EventTimes {
  now = 0;
  readonly #heap: { readonly at: number; readonly order: number; readonly run: () => void }[] = [];
  #order = 0;

  after(seconds: number, run: () => void): void {
    const heap = this.#heap;
    heap.push({ at: this.now + seconds, order: this.#order++, run });
    for (let i = heap.length - 1; i > 0; ) {
      const parent = (i - 1) >> 1;
      if (!this.#isBefore(i, parent)) break;
      this.#swap(i, parent);
      i = parent;
    }
  }

  /** What is due next; false when nothing is. */
  runNext(): boolean {
    const next = this.#pop();
    if (next === undefined) return false;
    this.now = next.at;
    next.run();
    return true;
  }

  #pop(): { readonly at: number; readonly run: () => void } | undefined {
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
    return first.at < second.at || (first.at === second.at && first.order < second.order);
  }

  #swap(a: number, b: number): void {
    const heap = this.#heap;
    [heap[a], heap[b]] = [heap[b]!, heap[a]!];
  }
}
