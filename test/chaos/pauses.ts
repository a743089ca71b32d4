/**
 * How long no step was finished, as whoever looks at it now and then sees it. Pure.
 *
 * Time in which nobody could make a step, because strikes keep the runner, every node or every server away, does not count.
 */
type Look = { readonly nowMs: number; readonly steps: number; readonly isStandstill: boolean };

/** Of one pause: all of it, what of it counts, and what of that came after the last strike. */
export type Pause = {
  readonly ms: number;
  readonly countedMs: number;
  readonly sinceStruckMs: number;
  readonly awayMs: number;
};

export class Pauses {
  /** everything counted */
  longestMs = 0;
  longestCounted = { ms: 0, strikes: 0 };
  longestSinceStruckMs = 0;
  #steps: number;
  #movedMs: number;
  #lookedMs: number;
  #awayMs = 0;
  #struck: { readonly atMs: number; readonly awayMs: number };

  constructor(nowMs: number, steps: number) {
    this.#steps = steps;
    this.#movedMs = nowMs;
    this.#lookedMs = nowMs;
    this.#struck = { atMs: nowMs, awayMs: 0 };
  }

  /** since the last step */
  quietMs(nowMs: number): number {
    return nowMs - this.#movedMs;
  }

  strike(nowMs: number): void {
    this.#struck = { atMs: nowMs, awayMs: this.#awayMs };
  }

  /** The pause that a step has ended, if one has; `strikes`: those since the step before it. */
  look({ nowMs, steps, isStandstill }: Look, strikes: number): Pause | undefined {
    if (isStandstill) this.#awayMs += nowMs - this.#lookedMs;
    this.#lookedMs = nowMs;
    const ms = nowMs - this.#movedMs;
    const isStruck = this.#struck.atMs > this.#movedMs;
    const countedMs = ms - this.#awayMs;
    const sinceStruckMs = isStruck ? nowMs - this.#struck.atMs - (this.#awayMs - this.#struck.awayMs) : countedMs;
    this.longestMs = Math.max(this.longestMs, ms);
    this.longestSinceStruckMs = Math.max(this.longestSinceStruckMs, sinceStruckMs);
    if (countedMs > this.longestCounted.ms) this.longestCounted = { ms: countedMs, strikes };
    if (steps <= this.#steps) return undefined;
    const pause = { ms, countedMs, sinceStruckMs, awayMs: this.#awayMs };
    this.#steps = steps;
    this.#movedMs = nowMs;
    this.#awayMs = 0;
    return pause;
  }
}
