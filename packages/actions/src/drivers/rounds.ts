/** Looks again and again while it is wanted: one look at a time, and one that is to come. */
export class Rounds {
  readonly #look: () => Promise<void>;
  readonly #waitMs: (tookMs: number) => number;
  #isWanted = false;
  #isLooking = false;
  #next: NodeJS.Timeout | undefined;

  /** `waitMs`: until the next look, by what the last one took. A look that fails is followed by another all the same. */
  constructor(look: () => Promise<void>, waitMs: (tookMs: number) => number) {
    this.#look = look;
    this.#waitMs = waitMs;
  }

  start(): void {
    this.#isWanted = true;
    this.#later(0);
  }

  stop(): void {
    this.#isWanted = false;
    clearTimeout(this.#next);
    this.#next = undefined;
  }

  #later(tookMs: number): void {
    if (!this.#isWanted || this.#isLooking || this.#next !== undefined) return;
    this.#next = setTimeout(() => {
      this.#next = undefined;
      this.#isLooking = true;
      const startedMs = performance.now();
      void this.#look()
        .catch(() => {})
        .finally(() => {
          this.#isLooking = false;
          this.#later(performance.now() - startedMs);
        });
    }, this.#waitMs(tookMs)).unref();
  }
}
