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
  readonly #clock: Clock;
  readonly #awaited: Set<number>;
  #over: Promise<void> | undefined;
  #end: () => void = () => {};

  constructor(ranks: Iterable<number>, clock: Clock) {
    this.#clock = clock;
    this.#awaited = new Set(ranks);
  }

  /** The moment begins when it is first asked for, which is when there is something to place. */
  over(): Promise<void> {
    this.#over ??= new Promise((resolve) => {
      if (this.#awaited.size === 0) return resolve();
      const cancel = this.#clock.after(gatherMs, resolve);
      this.#end = () => {
        cancel();
        resolve();
      };
    });
    return this.#over;
  }

  /** It has told, has none to tell of, or is gone. */
  told(rank: number): void {
    if (this.#awaited.delete(rank) && this.#awaited.size === 0) this.#end();
  }
}
