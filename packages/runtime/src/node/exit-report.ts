/** How long until a report that was not heard is sent again: soon at first, for a runner that is away for a moment. */
const firstMs = 300;
const longestMs = 3000;

/**
 * Sends until it is heard, or nobody is left to hear it: an end that a runner never hears of is waited for for ever.
 * `isOver`: whoever waited is gone.
 */
export async function reportUntilHeard(ports: {
  send(): Promise<unknown>;
  isOver(): boolean;
  pause(ms: number): Promise<unknown>;
}): Promise<void> {
  for (let pauseMs = firstMs; ; pauseMs = Math.min(longestMs, pauseMs + firstMs)) {
    try {
      await ports.send();
      return;
    } catch {
      if (ports.isOver()) return;
      await ports.pause(pauseMs);
      if (ports.isOver()) return;
    }
  }
}
