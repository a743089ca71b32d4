/** Whether a node's agent has ended, asked when something of it ended without a word: long before its lease is over. */
import { setTimeout as delay } from "node:timers/promises";
import { ask, type ControlPlane, type Member, TreadleError } from "@treadle/contracts";

/** An agent that has just lost its server serves nobody for a moment, and finds another one within about half a second. */
const looks = 3;
const betweenLooksMs = 350;
const timeoutMs = 2000;

/** True when nobody serves the agent's commands any more; one that does not answer may only be slow. */
export async function hasGone(plane: ControlPlane, member: Member): Promise<boolean> {
  for (let look = 0; look < looks; look++) {
    const nextMs = performance.now() + betweenLooksMs; // with keys a look takes time itself
    const error = await ask(plane, "node", member, "ping", {}, { timeoutMs }).then(
      () => undefined,
      (cause: unknown) => cause,
    );
    // Cut off itself, this process hears of nobody.
    if (!plane.isConnected || !(error instanceof TreadleError) || error.code !== "node.lost") return false;
    if (look + 1 < looks) await delay(Math.max(0, nextMs - performance.now()));
  }
  return true;
}
