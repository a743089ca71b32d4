import { setImmediate as nextTurn } from "node:timers/promises";
import type { Clock } from "@treadle/contracts";

type Timer = { readonly atMs: number; readonly run: () => void };

/** turns of the event loop without anything new, after which nothing more comes before time goes on */
const quietTurns = 3;

/**
 * Time that goes on only when nothing else is left to do: whatever else the machine does, and however long decisions take, the
 * same inputs give the same times.
 */
export class VirtualTime implements Clock {
  #nowMs = 0;
  #numAsked = 0;
  /** the next stands last */
  readonly #timers: Timer[] = [];

  now(): number {
    return this.#nowMs;
  }

  after(delayMs: number, run: () => void): () => void {
    const timer = { atMs: this.#nowMs + delayMs, run };
    let [low, high] = [0, this.#timers.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#timers[middle] as Timer).atMs > timer.atMs) low = middle + 1;
      else high = middle;
    }
    this.#timers.splice(low, 0, timer);
    this.#numAsked++;
    return () => {
      const at = this.#timers.indexOf(timer);
      if (at >= 0) this.#timers.splice(at, 1);
    };
  }

  sleep(delayMs: number): Promise<void> {
    return new Promise((resolve) => this.after(delayMs, resolve));
  }

  /** Lets time go on until it has settled. */
  async during<T>(work: Promise<T>): Promise<T> {
    let isOver = false;
    const over = () => {
      isOver = true;
    };
    work.then(over, over);
    while (!isOver) {
      await this.#quiet();
      const next = isOver ? undefined : this.#timers.pop();
      if (!next) continue;
      this.#nowMs = next.atMs;
      next.run();
      // What is due at one time goes together.
      while (this.#timers.at(-1)?.atMs === this.#nowMs) this.#timers.pop()?.run();
    }
    return work;
  }

  async #quiet(): Promise<void> {
    for (let turns = 0; turns < quietTurns; turns++) {
      const numAsked = this.#numAsked;
      await nextTurn();
      if (this.#numAsked !== numAsked) turns = -1;
    }
  }
}

/** What ranks of one process say to each other, some time later. */
export class Mailboxes {
  readonly #time: VirtualTime;
  readonly #latencyMs: number;
  readonly #queues = new Map<string, unknown[]>();
  readonly #waiting = new Map<string, (value: unknown) => void>();

  constructor(time: VirtualTime, latencyMs: number) {
    this.#time = time;
    this.#latencyMs = latencyMs;
  }

  of(rank: number) {
    const self = `rollout/${rank}`;
    return {
      callTag: (name: string) => name,
      send: async (to: string, value: unknown) => {
        await this.#time.sleep(this.#latencyMs);
        const key = `${self}>${to}`;
        const waiter = this.#waiting.get(key);
        this.#waiting.delete(key);
        if (waiter) waiter(value);
        else this.#queues.set(key, [...(this.#queues.get(key) ?? []), value]);
      },
      recv: <T>(from: string, _tag?: string, { signal }: { readonly signal?: AbortSignal | undefined } = {}) => {
        const key = `${from}>${self}`;
        const queued = this.#queues.get(key)?.shift();
        if (queued !== undefined) return Promise.resolve(queued as T);
        return new Promise<T>((resolve, reject) => {
          const abort = () => reject(signal?.reason as Error);
          signal?.addEventListener("abort", abort, { once: true });
          this.#waiting.set(key, (value) => {
            signal?.removeEventListener("abort", abort);
            resolve(value as T);
          });
        });
      },
    };
  }
}
