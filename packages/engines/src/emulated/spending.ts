import type { WorkSums } from "../work-meter.ts";

/** A pass under way, and how much of it was counted. Times are milliseconds of the engine's own clock. */
export class Spending {
  readonly #units: number;
  readonly #totalMs: number;
  readonly #sinceMs: number;
  #doneMs = 0;

  /** Over so many tokens; alone it takes so long. */
  constructor(units: number, totalMs: number, sinceMs: number) {
    this.#units = units;
    this.#totalMs = totalMs;
    this.#sinceMs = sinceMs;
  }

  /** What it has done since it was counted last, at a pace that was the same meanwhile. */
  count(nowMs: number, pace: number): WorkSums {
    const doneMs = Math.min(this.#totalMs, nowMs - this.#sinceMs);
    const ms = doneMs - this.#doneMs;
    this.#doneMs = doneMs;
    const part = this.#totalMs > 0 ? ms / this.#totalMs : 1;
    return { passes: part, tokens: part * this.#units, ms: ms * pace };
  }
}
