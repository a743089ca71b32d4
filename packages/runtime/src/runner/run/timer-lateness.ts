/**
 * How late timers of this process are: what everything that sleeps or waits for a message suffers while others have the
 * processors. Only stretches between `resume` and `pause` count.
 */
const everyMs = 10;

export class TimerLateness {
  #sumMs = 0;
  #count = 0;
  #before = { sumMs: 0, count: 0 }; // the last stretch
  #timer: NodeJS.Timeout | undefined;

  /** The mean, in milliseconds; 0 where nothing was seen. */
  get meanMs(): number {
    return this.#count > 0 ? this.#sumMs / this.#count : 0;
  }

  resume(): void {
    if (this.#timer !== undefined) return;
    this.#before = { sumMs: this.#sumMs, count: this.#count };
    this.#wait();
  }

  pause(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** What was seen since `resume` does not count. */
  forget(): void {
    this.#sumMs = this.#before.sumMs;
    this.#count = this.#before.count;
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
