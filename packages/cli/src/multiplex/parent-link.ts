/** The way from the process of a run to the one that started it. */
import { type PooledRunMessage, PoolReply, type RunEvent, TreadleError } from "@treadle/contracts";
import type { PoolLink } from "@treadle/runtime/runner";

export type ParentLink = {
  readonly pool: PoolLink;
  readonly sendEvent: (event: RunEvent) => void;
  /** Resolves when all of it has been handed over. */
  readonly close: () => Promise<void>;
};

export function openParentLink(): ParentLink {
  if (process.send === undefined)
    throw new TreadleError("problem.invalid", "'--pooled' is for runs that 'treadle multiplex' starts; leave it out");
  let last: Promise<void> = Promise.resolve();
  const send = (message: PooledRunMessage) => {
    if (!process.connected) return; // the run learns it from `onLost`
    last = new Promise((resolve) => process.send?.(message, undefined, {}, () => resolve()));
  };
  return {
    pool: {
      send: (request) => send({ pool: request }),
      onReply: (listener) => process.on("message", (message) => listener(PoolReply.parse(message))),
      onLost: (listener) => {
        process.once("disconnect", () => listener());
        if (!process.connected) listener();
      },
    },
    sendEvent: (event) => send({ event }),
    close: async () => {
      await last;
      process.removeAllListeners("disconnect");
      if (process.connected) process.disconnect();
    },
  };
}
