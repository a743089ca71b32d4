import type { Clock } from "./ports.ts";

/**
 * The time of work that others slow down: while work takes `pace` times as long, this clock goes that many times as slowly.
 *
 * PC1 it never goes back, and what is to happen after so much of its time happens after exactly that, whatever the paces in between.
 */
export class PacedClock implements Clock {
  readonly #clock: Clock;
  readonly #pending = new Set<Pending>();
  #pace = 1;
  /** its own time, at a time of the clock below */
  #at: number;
  #since: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#since = clock.now();
    this.#at = this.#since;
  }

  now(): number {
    const nowMs = this.#clock.now();
    // As long as nothing has slowed it down it is the clock below to the last digit.
    return this.#pace === 1 ? nowMs + (this.#at - this.#since) : this.#at + (nowMs - this.#since) / this.#pace;
  }

  after(delayMs: number, run: () => void, keepsAlive?: boolean): () => void {
    const pending: Pending = { due: this.now() + delayMs, run, keepsAlive, cancel: () => {} };
    this.#pending.add(pending);
    this.#arm(pending, delayMs);
    return () => {
      this.#pending.delete(pending);
      pending.cancel();
    };
  }

  get pace(): number {
    return this.#pace;
  }

  /** From now on; above 0. */
  set pace(pace: number) {
    if (pace === this.#pace) return;
    this.#at = this.now();
    this.#since = this.#clock.now();
    this.#pace = pace;
    for (const pending of this.#pending) this.#arm(pending, Math.max(0, pending.due - this.#at));
  }

  #arm(pending: Pending, delayMs: number): void {
    pending.cancel();
    const { run, keepsAlive } = pending;
    const act = () => {
      this.#pending.delete(pending);
      run();
    };
    pending.cancel = this.#clock.after(delayMs * this.#pace, act, keepsAlive);
  }
}

type Pending = {
  readonly due: number;
  readonly run: () => void;
  readonly keepsAlive: boolean | undefined;
  cancel: () => void;
};
