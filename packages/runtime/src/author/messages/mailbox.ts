/**
 * What has arrived at a worker and was not asked for yet, and what it waits for. Owned here: a place for each pair of sender and
 * tag, for as long as something lies in it or waits at it, so that a run of any length keeps no more than is under way.
 */
import type { MessageEnvelope, TreadleError } from "@treadle/contracts";
import type { z } from "zod";

type Place = {
  readonly from: string;
  readonly tag: string;
  readonly queue: { value: unknown; taken: () => void }[];
  readonly waiting: Waiter[];
};
type Waiter = { readonly sinceMs: number; resolve: (value: unknown) => void; reject: (error: unknown) => void };

const mailboxLimit = 16;
/** Of tags that nobody waits under any more; what comes under an older one is long overdue. */
const endedLimit = 1024;

export class Mailbox {
  readonly #places = new Map<string, Place>();
  /** of those whose waiting was ended: what still comes for them is dropped */
  readonly #ended = new Set<string>();

  /** Pairs of sender and tag of which a message lies here, or is waited for. */
  get size(): number {
    return this.#places.size;
  }

  /** The next message; throws what `peerDied` and `end` are told. */
  next(from: string, tag: string): Promise<unknown> {
    this.#ended.delete(keyOf(from, tag));
    const place = this.#place(from, tag);
    const ready = place.queue.shift();
    if (ready) {
      ready.taken();
      this.#close(place);
      return Promise.resolve(ready.value);
    }
    const sinceMs = performance.now();
    return new Promise((resolve, reject) => place.waiting.push({ sinceMs, resolve, reject }));
  }

  /** Nobody waits for such messages any more: what has come is dropped, and what still comes will be. */
  end(from: string, tag: string, reason: unknown): void {
    const place = this.#places.get(keyOf(from, tag));
    if (place) this.#drop(place, reason);
    this.#ended.add(keyOf(from, tag));
    const [oldest] = this.#ended;
    if (this.#ended.size > endedLimit && oldest !== undefined) this.#ended.delete(oldest);
  }

  /** Drops what lies here under such tags. */
  forget(isPast: (tag: string) => boolean): void {
    for (const place of this.#places.values())
      if (place.waiting.length === 0 && isPast(place.tag)) this.#drop(place, undefined);
  }

  /** The promise settles when the sender may go on. */
  deliver({ from, tag, value }: z.infer<typeof MessageEnvelope>): Promise<void> | undefined {
    if (this.#ended.has(keyOf(from, tag))) return undefined;
    const place = this.#place(from, tag);
    const waiter = place.waiting.shift();
    if (waiter) {
      waiter.resolve(value);
      this.#close(place);
      return undefined;
    }
    if (place.queue.length < mailboxLimit) {
      place.queue.push({ value, taken: () => {} });
      return undefined;
    }
    return new Promise((taken) => place.queue.push({ value, taken }));
  }

  peerDied(worker: string, cause: TreadleError): void {
    for (const place of this.#places.values()) if (place.from === worker) this.#drop(place, cause);
  }

  /** The messages that have been waited for longer than so. */
  awaited(longerThanMs: number): { from: string; tag: string }[] {
    const untilMs = performance.now() - longerThanMs;
    return [...this.#places.values()].filter(({ waiting: [first] }) => first !== undefined && first.sinceMs < untilMs);
  }

  #place(from: string, tag: string): Place {
    const key = keyOf(from, tag);
    let place = this.#places.get(key);
    if (!place) {
      place = { from, tag, queue: [], waiting: [] };
      this.#places.set(key, place);
    }
    return place;
  }

  #drop(place: Place, reason: unknown): void {
    for (const message of place.queue.splice(0)) message.taken();
    for (const waiter of place.waiting.splice(0)) waiter.reject(reason);
    this.#close(place);
  }

  #close({ from, tag, queue, waiting }: Place): void {
    if (queue.length === 0 && waiting.length === 0) this.#places.delete(keyOf(from, tag));
  }
}

const keyOf = (from: string, tag: string): string => `${from}\n${tag}`;
