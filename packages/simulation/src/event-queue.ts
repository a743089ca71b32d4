/**
 * Virtual time: what is to happen, in the order of time and, at one time, in the order in which it was asked for. So the
 * same inputs give the same run on every machine.
 *
 * A binary heap over three parallel arrays; `at` and `runNext` cost O(log n).
 */
import type { Clock } from "@treadle/contracts";

/** Where something happens later. */
export type Timeline = Pick<EventQueue, "nowMs" | "at" | "after">;

export class EventQueue {
  #nowMs = 0;
  #asked = 0;
  readonly #times: number[] = [];
  readonly #orders: number[] = [];
  readonly #actions: (() => void)[] = [];

  get nowMs(): number {
    return this.#nowMs;
  }

  /** Throws when the time is past or no number: time never goes back. */
  at(timeMs: number, action: () => void): void {
    if (!(timeMs >= this.#nowMs)) throw new RangeError(`an event at '${timeMs}' ms was asked for at ${this.#nowMs} ms`);
    const order = this.#asked++;
    let hole = this.#times.length;
    while (hole > 0) {
      const parent = (hole - 1) >> 1;
      if (!this.#isBefore(timeMs, order, parent)) break;
      this.#move(parent, hole);
      hole = parent;
    }
    this.#place(hole, timeMs, order, action);
  }

  after(delayMs: number, action: () => void): void {
    this.at(this.#nowMs + delayMs, action);
  }

  /** Lets the next thing happen; false when there is none. */
  runNext(): boolean {
    const action = this.#actions[0];
    if (action === undefined) return false;
    this.#nowMs = this.#times[0] as number;
    const timeMs = this.#times.pop() as number;
    const order = this.#orders.pop() as number;
    const last = this.#actions.pop() as () => void;
    const size = this.#times.length;
    if (size > 0) {
      let hole = 0;
      for (;;) {
        let child = 2 * hole + 1;
        if (child >= size) break;
        const right = child + 1;
        if (right < size && this.#isBefore(this.#times[right] as number, this.#orders[right] as number, child))
          child = right;
        if (this.#isBefore(timeMs, order, child)) break;
        this.#move(child, hole);
        hole = child;
      }
      this.#place(hole, timeMs, order, last);
    }
    action();
    return true;
  }

  #isBefore(timeMs: number, order: number, other: number): boolean {
    const otherMs = this.#times[other] as number;
    return timeMs < otherMs || (timeMs === otherMs && order < (this.#orders[other] as number));
  }

  #move(from: number, to: number): void {
    this.#place(to, this.#times[from] as number, this.#orders[from] as number, this.#actions[from] as () => void);
  }

  #place(at: number, timeMs: number, order: number, action: () => void): void {
    this.#times[at] = timeMs;
    this.#orders[at] = order;
    this.#actions[at] = action;
  }
}

/** A timeline as whoever needs a clock has it. */
export function clockOf(time: Timeline): Clock {
  return {
    now: () => time.nowMs,
    after: (delayMs, run) => {
      let isCancelled = false;
      time.after(delayMs, () => {
        if (!isCancelled) run();
      });
      return () => {
        isCancelled = true;
      };
    },
  };
}

/** What is to happen to one of several runs on the same time: nothing any more once that has ended. */
export class OwnEvents implements Timeline {
  readonly #all: Timeline;
  #hasEnded = false;

  constructor(all: Timeline) {
    this.#all = all;
  }

  get nowMs(): number {
    return this.#all.nowMs;
  }

  at(timeMs: number, action: () => void): void {
    this.#all.at(timeMs, () => {
      if (!this.#hasEnded) action();
    });
  }

  after(delayMs: number, action: () => void): void {
    this.at(this.nowMs + delayMs, action);
  }

  end(): void {
    this.#hasEnded = true;
  }
}
