/** Tokens, one after another, that a worker is busy with a group: that from `start` on of so many, the longest first. */
export type GroupTokens = (start: number, size: number) => number;

/** The paper's: all of a group are as long as its longest. */
export const asLongest =
  (sorted: Float64Array, factor: (k: number) => number): GroupTokens =>
  (start, size) =>
    factor(size) * sorted[start]!;

/** A bound to try: the geometric mean while the ends are orders apart, then the arithmetic one. */
export function between(low: number, high: number): number {
  return low > 0 && high > 4 * low ? Math.sqrt(low) * Math.sqrt(high) : low + (high - low) / 2;
}

/**
 * Finds how many of the next trajectories one worker can finish within a bound, where a longer run never takes less time.
 * It gallops from a guess, since bounds change little from probe to probe.
 */
export class LongestRun {
  readonly #tokensOf: GroupTokens;
  evaluations = 0;
  /** the least duration that was refused since the last `begin` */
  refused = Number.POSITIVE_INFINITY;
  /** seconds of the run found last, 0 for an empty one */
  seconds = 0;

  constructor(tokensOf: GroupTokens) {
    this.#tokensOf = tokensOf;
  }

  begin(): void {
    this.refused = Number.POSITIVE_INFINITY;
  }

  /** The size of the run, from 0 to `left` trajectories from `start` on. */
  find(start: number, tokenTime: number, bound: number, left: number, guess: number): number {
    let [low, high, stride] = [0, left + 1, 1];
    let highSeconds = Number.POSITIVE_INFINITY;
    let next = Math.min(Math.max(guess, 1), left);
    this.seconds = 0;
    while (high - low > 1) {
      const seconds = this.#tokensOf(start, next) * tokenTime;
      this.evaluations++;
      if (seconds <= bound) {
        low = next;
        this.seconds = seconds;
        next = high === left + 1 ? Math.min(low + stride, left) : (low + high) >> 1;
      } else {
        high = next;
        highSeconds = seconds;
        next = low === 0 ? Math.max(high - stride, 1) : (low + high) >> 1;
        if (next <= low) next = (low + high) >> 1;
      }
      stride *= 2;
    }
    if (highSeconds < this.refused) this.refused = highSeconds;
    return low;
  }
}
