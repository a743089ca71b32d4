/** Calls before anything is said, a mean second of saving each, and the share of a call from which it is worth saying. */
const fewestCalls = 3;
const leastMs = 1000;
const leastShare = 0.2;

/** Of calls that wait until their state is on the disk: what the wait costs. Says once that it is much, and what helps. */
export class SavingCost {
  readonly #say: (advice: string) => void;
  #calls = 0;
  #computedMs = 0;
  #savedMs = 0;
  #isSaid = false;

  constructor(say: (advice: string) => void) {
    this.#say = say;
  }

  /** What is `written` of a call that has begun at `startedMs` and took `computedMs` before. */
  async awaited<T>(written: Promise<T>, startedMs: number, computedMs: number): Promise<T> {
    const result = await written;
    this.add(computedMs, performance.now() - startedMs - computedMs);
    return result;
  }

  /** of one call: what it took, and then the wait for its state */
  add(computedMs: number, savedMs: number): void {
    this.#calls++;
    this.#computedMs += computedMs;
    this.#savedMs += savedMs;
    const share = this.#savedMs / (this.#computedMs + this.#savedMs);
    const meanMs = this.#savedMs / this.#calls;
    if (this.#isSaid || this.#calls < fewestCalls || meanMs < leastMs || share < leastShare) return;
    this.#isSaid = true;
    this.#say(
      `waits ${(meanMs / 1000).toFixed(1)} s after each call until its state is on the disk, ${Math.round(100 * share)} % of the time; with checkpoints.inBackground, or checkpoints.stateEverySteps above 1, it is written while later steps compute`,
    );
  }
}
