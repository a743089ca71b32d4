import type { Clock } from "@treadle/contracts";

/** For which a rank waits at most until others have told of their episodes: they begin a call together, and a step takes far longer. */
const gatherMs = 50;

export const machineClock: Clock = {
  now: () => performance.now(),
  after: (delayMs, run) => {
    const timer = setTimeout(run, delayMs);
    return () => clearTimeout(timer);
  },
};

/** Waits until each of these ranks has told of its first episodes, or has none, and a moment at most. */
export class Gathering {
  readonly over: Promise<void>;
  readonly #awaited: Set<number>;
  #end: () => void = () => {};

  constructor(ranks: Iterable<number>, clock: Clock) {
    this.#awaited = new Set(ranks);
    this.over = new Promise((resolve) => {
      const cancel = this.#awaited.size === 0 ? () => {} : clock.after(gatherMs, resolve);
      this.#end = () => {
        cancel();
        resolve();
      };
    });
    if (this.#awaited.size === 0) this.#end();
  }

  /** It has told, has none to tell of, or is gone. */
  told(rank: number): void {
    if (this.#awaited.delete(rank) && this.#awaited.size === 0) this.#end();
  }
}
