/**
 * A binary heap of small integers that knows where each stands, so that any of them can be taken out in O(log n).
 * An integer is in at most one of the heaps that share `places`.
 */
export class IndexedHeap {
  readonly #items: number[] = [];
  readonly #places: Int32Array;
  readonly #isBefore: (a: number, b: number) => boolean;

  /** `isBefore` is a strict order, which must not change for an item while it is in the heap. */
  constructor(places: Int32Array, isBefore: (a: number, b: number) => boolean) {
    this.#places = places;
    this.#isBefore = isBefore;
  }

  get size(): number {
    return this.#items.length;
  }

  /** The first item, without taking it. */
  get head(): number | undefined {
    return this.#items[0];
  }

  push(item: number): void {
    this.#items.push(item);
    this.#rise(this.#items.length - 1, item);
  }

  pop(): number | undefined {
    const head = this.#items[0];
    if (head !== undefined) this.remove(head);
    return head;
  }

  /** `item` must be in this heap. */
  remove(item: number): void {
    const at = this.#places[item]!;
    const last = this.#items.pop()!;
    if (last === item) return;
    this.#items[at] = last;
    this.#places[last] = at;
    this.#rise(at, last);
    this.#sink(this.#places[last]!, last);
  }

  #rise(from: number, item: number): void {
    let at = from;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = this.#items[parent]!;
      if (!this.#isBefore(item, above)) break;
      this.#put(at, above);
      at = parent;
    }
    this.#put(at, item);
  }

  #sink(from: number, item: number): void {
    const size = this.#items.length;
    let at = from;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && this.#isBefore(this.#items[child + 1]!, this.#items[child]!)) child++;
      if (!this.#isBefore(this.#items[child]!, item)) break;
      this.#put(at, this.#items[child]!);
      at = child;
    }
    this.#put(at, item);
  }

  #put(at: number, item: number): void {
    this.#items[at] = item;
    this.#places[item] = at;
  }
}
