import type { Clock } from "@treadle/contracts";

/** Real time. */
export const systemClock: Clock = {
  now: () => performance.now(),
  after(delayMs, run, keepsAlive = false) {
    const timer = setTimeout(run, delayMs);
    if (!keepsAlive) timer.unref();
    return () => clearTimeout(timer);
  },
};
