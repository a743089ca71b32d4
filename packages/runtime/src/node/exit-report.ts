/** How long until a report that was not heard is sent again: soon at first, for a runner that is away for a moment. */
const firstMs = 300;
const longestMs = 3000;
/** A runner that is not seen for so long is gone; for a moment, a network that is cut makes any look so. */
export const unseenMs = 15_000;

/**
 * Sends until it is heard, or nobody is left to hear it: an end that a runner never hears of is waited for for ever.
 * `isThere`: whoever waits is seen. `isOver`: nobody has to be told any more.
 */
export async function reportUntilHeard(ports: {
  send(): Promise<unknown>;
  isThere(): boolean;
  isOver(): boolean;
  now(): number;
  pause(ms: number): Promise<unknown>;
}): Promise<void> {
  let seenMs = ports.now();
  const isVain = () => {
    if (ports.isThere()) seenMs = ports.now();
    return ports.isOver() || ports.now() - seenMs > unseenMs;
  };
  for (let pauseMs = firstMs; ; pauseMs = Math.min(longestMs, pauseMs + firstMs)) {
    try {
      await ports.send();
      return;
    } catch {
      if (isVain()) return;
      await ports.pause(pauseMs);
      if (isVain()) return;
    }
  }
}
