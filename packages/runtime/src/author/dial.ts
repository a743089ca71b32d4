/**
 * The one way in which processes of a run dial each other, whose doors strangers may be crowding: who is sent away there asks
 * again, after a little longer each time.
 */
import { setTimeout as delay } from "node:timers/promises";
import { type Link, rootCause, TreadleError } from "@treadle/contracts";
import type { Endpoint } from "@treadle/transport";

const firstWaitMs = 50;
const longestWaitMs = 2000;

export type Patience = {
  /** how often it was tried, this time included */
  readonly isWorthAgain: (error: unknown, numTries: number) => boolean;
  /** after which no other try begins; without it whoever has started this process ends the wait */
  readonly timeoutMs?: number;
};

/** What `attempt` resolves with, or how it failed in the end. */
export async function untilAnswered<T>(attempt: () => Promise<T>, patience: Patience): Promise<T> {
  const { isWorthAgain, timeoutMs = Number.POSITIVE_INFINITY } = patience;
  const endMs = performance.now() + timeoutMs;
  for (let numTries = 1, waitMs = firstWaitMs; ; numTries++, waitMs = Math.min(2 * waitMs, longestWaitMs)) {
    const pauseMs = waitMs * (0.5 + Math.random()); // those that were kept out together do not come back together
    try {
      return await attempt();
    } catch (error) {
      if (!isWorthAgain(error, numTries) || performance.now() + pauseMs > endMs) throw error;
    }
    await delay(pauseMs);
  }
}

/** Until it answers, or whoever has started this process ends it (`supervision.startTimeoutMs`). */
export function dialRunner(endpoint: Pick<Endpoint, "connect">, addresses: readonly string[]): Promise<Link> {
  return untilAnswered(() => endpoint.connect(addresses, { expect: "runner" }), {
    isWorthAgain: (error) => mayAnswerYet(error, addresses),
  });
}

/** Another try may find what this one did not: somebody may listen there, and nobody said that it is another run's. */
export function mayAnswerYet(error: unknown, addresses: readonly string[]): boolean {
  if (!(error instanceof TreadleError) || error.code !== "link.refused" || isOfAny(error, "encryption")) return false;
  // The way around opens and closes with the control plane.
  if (addresses.some((address) => address.startsWith("relay:"))) return true;
  const { code } = rootCause(error) as NodeJS.ErrnoException;
  return code !== "ECONNREFUSED" && code !== "ENOENT";
}

/** Somebody listens there, and has sent this process away: of a machine that is gone nobody does. */
export const isTurnedAway = (error: unknown): boolean => isOfAny(error, "isTurnedAway");

function isOfAny(error: unknown, detail: "encryption" | "isTurnedAway"): boolean {
  for (let each = error; each instanceof Error; each = each.cause)
    if (each instanceof TreadleError && each.details[detail] !== undefined) return true;
  return false;
}
