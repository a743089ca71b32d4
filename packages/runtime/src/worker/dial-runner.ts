/**
 * A starting worker's way to its runner, whose door strangers may be crowding: it is dialled again and again, until it
 * answers or whoever has started this process ends it (`supervision.startTimeoutMs`).
 */
import { setTimeout as delay } from "node:timers/promises";
import { type Link, rootCause, TreadleError } from "@treadle/contracts";
import type { Endpoint } from "@treadle/transport";

const firstWaitMs = 50;
const longestWaitMs = 2000;

/** Rejects when another try would find the same: nobody listens there, or it is not this run's runner. */
export async function dialRunner(endpoint: Pick<Endpoint, "connect">, addresses: readonly string[]): Promise<Link> {
  for (let waitMs = firstWaitMs; ; waitMs = Math.min(2 * waitMs, longestWaitMs)) {
    try {
      return await endpoint.connect(addresses, { expect: "runner" });
    } catch (error) {
      if (!isWorthAgain(error as TreadleError, addresses)) throw error;
    }
    await delay(waitMs * (0.5 + Math.random())); // those that were kept out together do not come back together
  }
}

function isWorthAgain(error: TreadleError, addresses: readonly string[]): boolean {
  if (error.code !== "link.refused" || isOneSided(error)) return false;
  // The way around opens and closes with the control plane.
  if (addresses.some((address) => address.startsWith("relay:"))) return true;
  const { code } = rootCause(error) as NodeJS.ErrnoException;
  return code !== "ECONNREFUSED" && code !== "ENOENT";
}

/** One side has certificates and the other has none, which no patience mends. */
function isOneSided(error: unknown): boolean {
  for (let each = error; each instanceof Error; each = each.cause)
    if (each instanceof TreadleError && each.details["encryption"] !== undefined) return true;
  return false;
}
