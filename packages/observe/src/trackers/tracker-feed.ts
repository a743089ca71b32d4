/**
 * Hands the metrics of steps to experiment trackers, one after the other, each in its own time.
 *
 * Owner of: the rows that wait for each tracker. Nothing that a tracker does reaches the run:
 * TK1 a row is written, or dropped and counted: a tracker that fails, is late or is slower than the run for `maxWaiting` rows loses rows
 *     and never delays a step; the run hears of the first failure, and at its end of how many rows were dropped.
 * TK2 closing takes at most `closeMs` for each tracker, whatever waits.
 */
import { timeLimit } from "@treadle/contracts/time-limit";

/** What one step reported. */
export type TrackedRow = {
  readonly step: number;
  readonly atMs: number;
  readonly values: Readonly<Record<string, number>>;
};

/** How a run ended: `open` where it may be resumed. */
export type TrackedEnd = "finished" | "failed" | "open";

/** One place that metrics are sent to. Calls come one at a time; `signal` aborts one that is late. */
export interface Tracker {
  /** as people know it: `mlflow at http://127.0.0.1:5000` */
  readonly name: string;
  open(signal: AbortSignal): Promise<void>;
  write(rows: readonly TrackedRow[], signal: AbortSignal): Promise<void>;
  close(end: TrackedEnd, signal: AbortSignal): Promise<void>;
}

export type TrackerLimits = {
  /** rows that wait for a tracker; a further one is dropped */
  readonly maxWaiting: number;
  /** of one call */
  readonly callMs: number;
  readonly closeMs: number;
};
const usualLimits: TrackerLimits = { maxWaiting: 1000, callMs: 30_000, closeMs: 10_000 };
const maxRowsOfACall = 50;

export class TrackerFeed {
  readonly #tracker: Tracker;
  readonly #warn: (message: string) => void;
  readonly #limits: TrackerLimits;
  #waiting: TrackedRow[] = [];
  #isOpen = false;
  #work: Promise<void> | undefined;
  #numDropped = 0;
  #numUnderWay = 0;
  /** ends whatever is under way */
  readonly #over = new AbortController();
  #isClosed = false;
  #hasWarned = false;

  constructor(tracker: Tracker, warn: (message: string) => void, limits: Partial<TrackerLimits> = {}) {
    this.#tracker = tracker;
    this.#warn = warn;
    this.#limits = { ...usualLimits, ...limits };
  }

  /** Returns at once. */
  write(row: TrackedRow): void {
    if (this.#isClosed) return;
    if (this.#waiting.length >= this.#limits.maxWaiting)
      this.#dropped(1, `'${this.#waiting.length}' rows wait for it`); // TK1
    else this.#waiting.push(row);
    this.#work ??= this.#drain().finally(() => {
      this.#work = undefined;
    });
  }

  /** Rows that wait are written first, as far as there is time. Never rejects. */
  async close(end: TrackedEnd): Promise<void> {
    this.#isClosed = true;
    const { closeMs } = this.#limits;
    const done = (async () => {
      await this.#work;
      if (this.#isOpen) await this.#call((signal) => this.#tracker.close(end, signal), 0);
    })();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<"late">((resolve) => {
      timer = setTimeout(() => resolve("late"), closeMs); // TK2
    });
    if ((await Promise.race([done, late])) === "late") {
      this.#dropped(this.#waiting.splice(0).length + this.#numUnderWay, `it did not close within '${closeMs}' ms`);
      this.#numUnderWay = 0;
      this.#over.abort();
    }
    clearTimeout(timer);
    if (this.#numDropped > 0)
      this.#warn(`'${this.#numDropped}' rows of metrics were dropped for ${this.#tracker.name}`);
  }

  async #drain(): Promise<void> {
    while (this.#waiting.length > 0 && !this.#over.signal.aborted) {
      if (!this.#isOpen) {
        this.#isOpen = await this.#call((signal) => this.#tracker.open(signal), 0);
        // What cannot be opened is tried again with each row, and loses it.
        if (!this.#isOpen) {
          this.#numDropped += this.#waiting.splice(0, maxRowsOfACall).length;
          continue;
        }
      }
      const rows = this.#waiting.splice(0, maxRowsOfACall);
      await this.#call((signal) => this.#tracker.write(rows, signal), rows.length);
    }
  }

  /** Whether it succeeded in time; a call that goes on regardless is left alone. */
  async #call(act: (signal: AbortSignal) => Promise<void>, numRows: number): Promise<boolean> {
    const { callMs } = this.#limits;
    const late = timeLimit(callMs);
    const signal = AbortSignal.any([late, this.#over.signal]);
    this.#numUnderWay = numRows;
    try {
      const acted = act(signal);
      acted.catch(() => {});
      await Promise.race([acted, aborted(signal)]);
      return true;
    } catch (error) {
      const why = late.aborted ? `it did not answer within '${callMs}' ms` : reasonOf(error);
      this.#dropped(this.#numUnderWay, why);
      return false;
    } finally {
      this.#numUnderWay = 0;
    }
  }

  #dropped(numRows: number, why: string): void {
    this.#numDropped += numRows;
    if (this.#hasWarned) return;
    this.#hasWarned = true;
    this.#warn(`metrics do not reach ${this.#tracker.name}: ${why}; the run goes on, and counts what is dropped`);
  }
}

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true }));

/** Of whatever was thrown (TK1): nothing at all, a text, or what throws where it is read. `fetch` hides why in its cause. */
const reasonOf = (thrown: unknown): string => {
  if (typeof thrown === "string" && thrown !== "") return thrown;
  if (typeof thrown !== "object" || thrown === null) return `'${String(thrown)}' was thrown`;
  try {
    const { message, name, cause } = thrown as Partial<Error>;
    const what = message || (name && `'${name}' was thrown`);
    if (typeof what !== "string") return noReason;
    return cause instanceof Error ? `${what}: ${cause.message || (cause as NodeJS.ErrnoException).code}` : what;
  } catch {
    return noReason;
  }
};
const noReason = "an object without a message was thrown";
