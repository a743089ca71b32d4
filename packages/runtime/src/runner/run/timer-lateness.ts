/**
 * How late timers of this process are: what everything that sleeps or waits for a message suffers while others have the
 * processors. Only stretches between `resume` and `pause` count.
 */
const everyMs = 10;

export class TimerLateness {
  #sumMs = 0;
  #count = 0;
  #timer: NodeJS.Timeout | undefined;

  /** The mean, in milliseconds; 0 where nothing was seen. */
  get meanMs(): number {
    return this.#count > 0 ? this.#sumMs / this.#count : 0;
  }

  resume(): void {
    if (this.#timer === undefined) this.#wait();
  }

  pause(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #wait(): void {
    const dueMs = performance.now() + everyMs;
    this.#timer = setTimeout(() => {
      this.#sumMs += Math.max(0, performance.now() - dueMs);
      this.#count++;
      this.#wait();
    }, everyMs);
    this.#timer.unref();
  }
}
