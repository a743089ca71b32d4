import { vi } from "vitest";

/** Of Node, whatever takes its place meanwhile. */
export const realSetTimeout = setTimeout;

/** Lets timers' time pass, and what waits for files and other processes go on meanwhile. */
export async function pass(ms: number): Promise<void> {
  for (let passedMs = 0; passedMs < ms; passedMs += 100) {
    await vi.advanceTimersByTimeAsync(100);
    await new Promise<void>((resolve) => realSetTimeout(resolve, 2));
  }
}
