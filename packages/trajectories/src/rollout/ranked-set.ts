import { scramble } from "../random.ts";

/**
 * Trajectories by what is predicted for them, largest first, equal ones by their tie, which is the index unless another is
 * given; says in O(log n) how many stand before one. A treap whose priorities come from the index, so that equal calls give
 * equal trees. It grows as larger indices come.
 */
export class RankedSet {
  #left: Int32Array;
  #right: Int32Array;
  #size: Int32Array;
  #priority: Int32Array;
  #value: Float64Array;
  #tie: Float64Array;
  #root = -1;

  constructor(capacity: number) {
    this.#left = new Int32Array(capacity).fill(-1);
    this.#right = new Int32Array(capacity).fill(-1);
    this.#size = new Int32Array(capacity);
    this.#value = new Float64Array(capacity);
    this.#tie = new Float64Array(capacity);
    this.#priority = prioritiesOf(capacity);
  }

  get size(): number {
    return this.#sizeOf(this.#root);
  }

  /** `item` must not be in the set. */
  add(item: number, value: number, tie = item): void {
    if (item >= this.#value.length) this.#grow(2 * item + 1);
    this.#value[item] = value;
    this.#tie[item] = tie;
    this.#left[item] = -1;
    this.#right[item] = -1;
    this.#size[item] = 1;
    const [before, after] = this.#split(this.#root, item);
    this.#root = this.#join(this.#join(before, item), after);
  }

  /** `item` must be in the set. */
  remove(item: number): void {
    this.#root = this.#without(this.#root, item);
  }

  /** How many of the set stand before `item`, which must be in it. */
  rank(item: number): number {
    let rank = 0;
    for (let at = this.#root; at !== item; ) {
      if (this.#isBefore(item, at)) at = this.#left[at]!;
      else {
        rank += this.#sizeOf(this.#left[at]!) + 1;
        at = this.#right[at]!;
      }
    }
    return rank + this.#sizeOf(this.#left[item]!);
  }

  /** All values, largest first. */
  values(): Float64Array {
    const sorted = new Float64Array(this.size);
    const above: number[] = [];
    for (let at = this.#root, i = 0; at >= 0 || above.length > 0; ) {
      for (; at >= 0; at = this.#left[at]!) above.push(at);
      at = above.pop()!;
      sorted[i++] = this.#value[at]!;
      at = this.#right[at]!;
    }
    return sorted;
  }

  #isBefore(a: number, b: number): boolean {
    const [x, y] = [this.#value[a]!, this.#value[b]!];
    return x > y || (x === y && this.#tie[a]! < this.#tie[b]!);
  }

  #grow(capacity: number): void {
    const grown = <T extends Int32Array | Float64Array>(next: T, before: T): T => {
      next.set(before);
      return next;
    };
    this.#left = grown(new Int32Array(capacity), this.#left);
    this.#right = grown(new Int32Array(capacity), this.#right);
    this.#size = grown(new Int32Array(capacity), this.#size);
    this.#value = grown(new Float64Array(capacity), this.#value);
    this.#tie = grown(new Float64Array(capacity), this.#tie);
    this.#priority = prioritiesOf(capacity);
  }

  #sizeOf(at: number): number {
    return at < 0 ? 0 : this.#size[at]!;
  }

  #pull(at: number): number {
    this.#size[at] = 1 + this.#sizeOf(this.#left[at]!) + this.#sizeOf(this.#right[at]!);
    return at;
  }

  /** Those of `at` before `item`, and those after it. */
  #split(at: number, item: number): [number, number] {
    if (at < 0) return [-1, -1];
    if (this.#isBefore(at, item)) {
      const [before, after] = this.#split(this.#right[at]!, item);
      this.#right[at] = before;
      return [this.#pull(at), after];
    }
    const [before, after] = this.#split(this.#left[at]!, item);
    this.#left[at] = after;
    return [before, this.#pull(at)];
  }

  /** All of `before` stand before all of `after`. */
  #join(before: number, after: number): number {
    if (before < 0) return after;
    if (after < 0) return before;
    if (this.#priority[before]! > this.#priority[after]!) {
      this.#right[before] = this.#join(this.#right[before]!, after);
      return this.#pull(before);
    }
    this.#left[after] = this.#join(before, this.#left[after]!);
    return this.#pull(after);
  }

  #without(at: number, item: number): number {
    if (at === item) return this.#join(this.#left[at]!, this.#right[at]!);
    if (this.#isBefore(item, at)) this.#left[at] = this.#without(this.#left[at]!, item);
    else this.#right[at] = this.#without(this.#right[at]!, item);
    return this.#pull(at);
  }
}

const prioritiesOf = (capacity: number): Int32Array =>
  Int32Array.from({ length: capacity }, (_, i) => scramble(Math.imul(i + 1, 0x9e3779b9)));
