import type { Clock } from "@treadle/contracts";

/** Time moves only in `advance`, which lets promises settle after each timer. */
export class HandDrivenClock implements Clock {
  #nowMs = 0;
  readonly #timers = new Set<{ atMs: number; run: () => void }>();

  now(): number {
    return this.#nowMs;
  }

  after(delayMs: number, run: () => void): () => void {
    const timer = { atMs: this.#nowMs + delayMs, run };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  async advance(ms: number): Promise<void> {
    const endMs = this.#nowMs + ms;
    for (;;) {
      await new Promise((resolve) => setImmediate(resolve));
      const [next] = [...this.#timers].sort((a, b) => a.atMs - b.atMs);
      if (!next || next.atMs > endMs) break;
      this.#timers.delete(next);
      this.#nowMs = next.atMs;
      next.run();
    }
    this.#nowMs = endMs;
  }
}
