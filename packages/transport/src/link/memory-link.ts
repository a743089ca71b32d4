/**
 * A pair of links inside one process. The object itself passes, in order, on a later microtask.
 *
 * Owned here: one queue a direction. Nothing is copied, so sender and receiver must not change what was sent.
 *
 * MM1 a message arrives after `send` has returned, in the order of sending.
 * MM2 both ends learn of a close exactly once, after every message sent before it.
 */

import { type Link, type PeerName, TreadleError } from "@treadle/contracts";

class MemoryLink implements Link {
  readonly remote: PeerName;
  #other: MemoryLink | undefined;
  #inbox: unknown[] = [];
  #listener: ((message: unknown) => void) | undefined;
  #closeListeners: ((cause: Error | undefined) => void)[] = [];
  #state: "open" | "closing" | "closed" = "open";
  #cause: Error | undefined;
  #draining = false;
  #waiters: (() => void)[] = [];

  constructor(remote: PeerName) {
    this.remote = remote;
  }

  join(other: MemoryLink): void {
    this.#other = other;
  }

  get queuedBytes(): number {
    return 0;
  }

  send(message: unknown): void {
    if (this.#state !== "open") throw closedError(this.remote);
    this.#other!.#receive(message);
  }

  drained(): Promise<void> {
    if (this.#state !== "open") return Promise.reject(closedError(this.remote));
    const other = this.#other!;
    if (other.#inbox.length === 0) return Promise.resolve();
    return new Promise((resolve, reject) => {
      other.#waiters.push(() => (this.#state === "closed" ? reject(closedError(this.remote)) : resolve()));
    });
  }

  onMessage(listener: (message: unknown) => void): void {
    this.#listener = listener;
    this.#schedule();
  }

  onClose(listener: (cause: Error | undefined) => void): void {
    if (this.#state === "closed") listener(this.#cause);
    else this.#closeListeners.push(listener);
  }

  close(cause?: Error): Promise<void> {
    this.#finish(cause);
    this.#other!.#finish(cause);
    return new Promise((resolve) => this.onClose(() => resolve()));
  }

  #receive(message: unknown): void {
    this.#inbox.push(message);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#draining || (this.#listener === undefined && this.#state === "open")) return;
    this.#draining = true;
    queueMicrotask(() => this.#drain());
  }

  #drain(): void {
    this.#draining = false;
    const inbox = this.#inbox;
    this.#inbox = [];
    for (const [index, message] of inbox.entries()) {
      try {
        this.#listener?.(message);
      } catch (error) {
        // A listener's bug is its own: the rest still arrives, and the error surfaces as uncaught.
        queueMicrotask(() => {
          throw error;
        });
      }
      if (this.#state === "closed") {
        inbox.length = index + 1;
        break;
      }
    }
    if (this.#inbox.length > 0) {
      this.#schedule();
      return;
    }
    const waiters = this.#waiters;
    this.#waiters = [];
    if (this.#state === "closing") {
      this.#state = "closed"; // MM2: only now is everything delivered
      for (const listener of this.#closeListeners) listener(this.#cause);
    }
    for (const waiter of waiters) waiter();
  }

  #finish(cause: Error | undefined): void {
    if (this.#state !== "open") return;
    this.#state = "closing";
    this.#cause = cause;
    if (cause) this.#inbox = [];
    this.#schedule();
  }
}

function closedError(remote: PeerName): TreadleError {
  return new TreadleError("link.closed", `link to '${remote}' is closed: nothing more can be sent on it`);
}

/** Two joined ends; `names` are what each end calls itself. */
export function memoryLinkPair(names: readonly [PeerName, PeerName] = ["left", "right"]): [Link, Link] {
  const left = new MemoryLink(names[1]);
  const right = new MemoryLink(names[0]);
  left.join(right);
  right.join(left);
  return [left, right];
}
