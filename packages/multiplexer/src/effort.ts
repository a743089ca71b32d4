/** How long a search may go on: steps of simulation, and time when a clock is given. One step is one end or one decision. */
export class Effort {
  #steps = 0;
  #isSpent = false;
  readonly #deadlineMs: number;
  readonly #nowMs: (() => number) | undefined;

  constructor(options: { readonly deadlineMs?: number | undefined; readonly nowMs?: (() => number) | undefined } = {}) {
    const { deadlineMs, nowMs } = options;
    this.#nowMs = deadlineMs === undefined ? undefined : nowMs;
    this.#deadlineMs = this.#nowMs === undefined ? 0 : this.#nowMs() + deadlineMs!;
  }

  get steps(): number {
    return this.#steps;
  }

  /** The deadline has passed; it stays so. */
  get isSpent(): boolean {
    return this.#isSpent;
  }

  /** Counts `steps`, and looks at the clock now and then; whether the deadline has passed. */
  take(steps: number): boolean {
    const before = this.#steps;
    this.#steps += steps;
    if (this.#nowMs !== undefined && before >> 8 !== this.#steps >> 8 && this.#nowMs() >= this.#deadlineMs) {
      this.#isSpent = true;
    }
    return this.#isSpent;
  }
}
