/** The two containers a stream keeps its items in: a ring for what comes in order, a heap for what does not. */

/** A double-ended queue on a power-of-two ring; every operation is O(1) amortised. */
export class Ring<T> {
  #slots: (T | undefined)[] = new Array(16).fill(undefined);
  #head = 0;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  front(): T | undefined {
    return this.#size === 0 ? undefined : this.#slots[this.#head];
  }

  push(value: T): void {
    if (this.#size === this.#slots.length) this.#grow();
    this.#slots[(this.#head + this.#size) & (this.#slots.length - 1)] = value;
    this.#size += 1;
  }

  unshift(value: T): void {
    if (this.#size === this.#slots.length) this.#grow();
    this.#head = (this.#head - 1) & (this.#slots.length - 1);
    this.#slots[this.#head] = value;
    this.#size += 1;
  }

  shift(): T | undefined {
    if (this.#size === 0) return undefined;
    const value = this.#slots[this.#head];
    this.#slots[this.#head] = undefined;
    this.#head = (this.#head + 1) & (this.#slots.length - 1);
    this.#size -= 1;
    return value;
  }

  *[Symbol.iterator](): Generator<T> {
    for (let i = 0; i < this.#size; i++) yield this.#slots[(this.#head + i) & (this.#slots.length - 1)] as T;
  }

  #grow(): void {
    const slots = new Array<T | undefined>(this.#slots.length * 2).fill(undefined);
    for (let i = 0; i < this.#size; i++) slots[i] = this.#slots[(this.#head + i) & (this.#slots.length - 1)];
    this.#slots = slots;
    this.#head = 0;
  }
}

/** A binary heap. Entries go stale instead of being removed; `front` drops those that `isLive` no longer accepts. */
export class LazyHeap<T> {
  #entries: T[] = [];
  readonly #compare: (a: T, b: T) => number;
  readonly #isLive: (entry: T) => boolean;

  constructor(compare: (a: T, b: T) => number, isLive: (entry: T) => boolean) {
    this.#compare = compare;
    this.#isLive = isLive;
  }

  /** Stale entries included: 0 is a fact, anything else an upper bound. */
  get size(): number {
    return this.#entries.length;
  }

  push(entry: T): void {
    const entries = this.#entries;
    let at = entries.length;
    entries.push(entry);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = entries[parent] as T;
      if (this.#compare(entry, above) >= 0) break;
      entries[at] = above;
      at = parent;
    }
    entries[at] = entry;
  }

  front(): T | undefined {
    while (this.#entries.length > 0) {
      const entry = this.#entries[0] as T;
      if (this.#isLive(entry)) return entry;
      this.pop();
    }
    return undefined;
  }

  pop(): void {
    const entries = this.#entries;
    const last = entries.pop();
    if (last === undefined || entries.length === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= entries.length) break;
      if (child + 1 < entries.length && this.#compare(entries[child + 1] as T, entries[child] as T) < 0) child += 1;
      const below = entries[child] as T;
      if (this.#compare(last, below) <= 0) break;
      entries[at] = below;
      at = child;
    }
    entries[at] = last;
  }

  /** Live entries in no particular order, each once; stale ones and repetitions are forgotten. */
  live(): readonly T[] {
    const kept = [...new Set(this.#entries.filter(this.#isLive))];
    this.#entries = [];
    for (const entry of kept) this.push(entry);
    return kept;
  }
}
