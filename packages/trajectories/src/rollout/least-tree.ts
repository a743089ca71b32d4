/** Values of a fixed number of slots, and the least of them with the lowest slot that has it: O(log n) a change. */
export class LeastTree {
  readonly #leaves: number;
  readonly #values: Float64Array;

  constructor(slots: number, initial: number) {
    this.#leaves = 2 ** Math.ceil(Math.log2(Math.max(1, slots)));
    this.#values = new Float64Array(2 * this.#leaves).fill(Number.POSITIVE_INFINITY);
    this.#values.fill(initial, this.#leaves, this.#leaves + slots);
    for (let at = this.#leaves - 1; at >= 1; at--) this.#pull(at);
  }

  get least(): number {
    return this.#values[1]!;
  }

  /** The lowest slot that has the least value. */
  get slot(): number {
    let at = 1;
    while (at < this.#leaves) {
      at *= 2;
      if (this.#values[at] !== this.least) at++;
    }
    return at - this.#leaves;
  }

  set(slot: number, value: number): void {
    let at = this.#leaves + slot;
    this.#values[at] = value;
    for (at >>= 1; at >= 1; at >>= 1) this.#pull(at);
  }

  #pull(at: number): void {
    this.#values[at] = Math.min(this.#values[2 * at]!, this.#values[2 * at + 1]!);
  }
}
