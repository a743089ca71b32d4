/**
 * What a lane shows of spans that are too thin to be seen one by one: each column of pixels stands for a stretch of time, as
 * high as it was busy, in the colours of what filled it. Pure.
 */

/** Columns from `column` on that look alike, in one colour: from `low` to `high`, in parts of the lane's height. */
export type ColumnBlock = {
  readonly paint: number;
  readonly column: number;
  readonly width: number;
  readonly low: number;
  readonly high: number;
};

export class LaneColumns {
  #numColumns = 0;
  /** by paint, for each column the share of its time */
  readonly #shares = new Map<number, Float64Array>();
  readonly #used = new Set<number>();

  /** Empties it, for a lane that is so wide. */
  begin(numColumns: number): void {
    if (numColumns !== this.#numColumns) this.#shares.clear();
    for (const paint of this.#used) this.#shares.get(paint)?.fill(0);
    this.#numColumns = numColumns;
    this.#used.clear();
  }

  /** `columns` of time that is spread evenly from the column of `from` to that of `to`, both cut to the lane. */
  cover(paint: number, from: number, to: number, columns: number): void {
    const end = this.#numColumns - 1;
    const first = Math.max(0, Math.min(end, Math.floor(from)));
    const last = Math.max(first, Math.min(end, Math.floor(to)));
    let shares = this.#shares.get(paint);
    if (shares === undefined) {
      shares = new Float64Array(this.#numColumns);
      this.#shares.set(paint, shares);
    }
    this.#used.add(paint);
    const share = columns / (last - first + 1);
    for (let column = first; column <= last; column++) shares[column] = (shares[column] as number) + share;
  }

  /**
   * Paints on top of each other in the order in which they came, no column higher than the lane. Heights are in whole `parts`:
   * columns side by side that look alike are one block, and a drawing costs by the number of blocks.
   */
  *blocks(parts: number): Generator<ColumnBlock> {
    const filled = new Float64Array(this.#numColumns);
    for (const paint of this.#used) {
      const shares = this.#shares.get(paint) as Float64Array;
      let [column, low, high] = [0, 0, 0];
      for (let at = 0; at < this.#numColumns; at++) {
        const below = filled[at] as number;
        const above = Math.min(1, below + (shares[at] as number));
        filled[at] = above;
        const [from, to] = [Math.round(below * parts), Math.round(above * parts)];
        if (from === low && to === high) continue;
        if (high > low) yield { paint, column, width: at - column, low, high };
        [column, low, high] = [at, from, to];
      }
      if (high > low) yield { paint, column, width: this.#numColumns - column, low, high };
    }
  }
}
