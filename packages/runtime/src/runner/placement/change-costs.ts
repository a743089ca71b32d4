import { median } from "@treadle/contracts";

/** What a change of plan is taken to cost until one has been made: processes start in about a second. */
const firstChangeSeconds = 1;

/**
 * What changes of plan have cost a run. Processes start while the first step under a plan waits for them, so a change costs what that
 * step took longer than the second, and the change itself.
 */
export class ChangeCosts {
  readonly #seconds: number[] = [];
  #change: { readonly beganMs: number; firstStepMs?: number } | undefined;

  began(nowMs: number): void {
    this.#change = { beganMs: nowMs };
  }

  stepEnded(seconds: number, nowMs: number): void {
    if (this.#change === undefined) return;
    const { beganMs, firstStepMs } = this.#change;
    if (firstStepMs === undefined) {
      this.#change.firstStepMs = nowMs;
      return;
    }
    this.#seconds.push(Math.max(0, (firstStepMs - beganMs) / 1000 - seconds));
    this.#change = undefined;
  }

  get seconds(): number {
    return this.#seconds.length > 0 ? median(this.#seconds) : firstChangeSeconds;
  }
}
