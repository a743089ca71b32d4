/** Finds that a process is stopped or frozen, while somebody waits for it. */
import { setTimeout as delay } from "node:timers/promises";

/** Asks at least so often, so that one which freezes is found soon after `silenceMs`. */
const longestPauseMs = 5_000;

export type WatchOptions = {
  /** resolves whether the process has answered within so many milliseconds; never rejects */
  readonly ask: (timeoutMs: number) => Promise<boolean>;
  readonly silenceMs: number;
  /** called once, of a process that has been silent for so long */
  readonly frozen: () => void;
};

/**
 * HW1 a process is frozen once two questions in a row had no answer, each for half of `silenceMs`: where this process was stopped as
 *     well, the first question after that is late, and the second is answered. A slow process answers beside its work.
 * HW2 nothing is asked while nobody waits.
 */
export class Watch {
  readonly #options: WatchOptions;
  #numWaiting = 0;
  #isAsking = false;

  constructor(options: WatchOptions) {
    this.#options = options;
  }

  /** Somebody waits, until the answer is called. */
  begin(): () => void {
    this.#numWaiting++;
    if (!this.#isAsking) void this.#run();
    let isOver = false;
    return () => {
      if (!isOver) this.#numWaiting--;
      isOver = true;
    };
  }

  async #run(): Promise<void> {
    this.#isAsking = true;
    const { ask, silenceMs, frozen } = this.#options;
    const timeoutMs = silenceMs / 2;
    for (let misses = 0; misses < 2; ) {
      if (misses === 0) await delay(Math.min(longestPauseMs, timeoutMs), undefined, { ref: false });
      if (this.#numWaiting === 0) {
        this.#isAsking = false; // HW2
        return;
      }
      misses = (await ask(timeoutMs)) ? 0 : misses + 1; // HW1
    }
    frozen();
  }
}
