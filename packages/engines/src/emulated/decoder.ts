/**
 * Sequences that advance together, one step at a time, on a shared device: a pure state machine over time in
 * milliseconds. How long a step takes depends on how many sequences run, so a finish speeds up those that stay.
 *
 * DE1 at most `slots` sequences run; of those that wait and may run, the one of highest priority is next, equal ones in the
 *    order in which they came. None is displaced.
 * DE2 a sequence finishes after exactly its number of steps, counted over all the speeds it ran at.
 * DE3 while paused nothing advances and nothing is lost.
 * DE4 a sequence that may go on after its finish leaves its slot and stays begun, until it is added again or removed. Another
 *    begins only while fewer have begun than there are slots and spare ones.
 */
export class Decoder {
  readonly #stepMs: (running: number) => number;
  readonly #slots: number;
  readonly #running = new Map<number, { done: number; steps: number; readonly mayGoOn: boolean }>();
  readonly #begun = new Set<number>();
  /** those which go first stand last */
  #waiting: Waiting[] = [];
  #numCome = 0;
  #passes = 0;
  #tokens = 0;
  #madeMs = 0;
  #nowMs: number;
  #paused = false;

  constructor(stepMs: (running: number) => number, slots: number, nowMs: number) {
    this.#stepMs = stepMs;
    this.#slots = slots;
    this.#nowMs = nowMs;
  }

  /** All at once, so that the highest priorities are first. Call `advance` to now before this and before `remove`, `renew` and `pause`. */
  add(sequences: readonly DecoderSequence[]): void {
    for (const { id, steps, priority = 0, numSpare = 0, mayGoOn = false } of sequences)
      this.#waiting.push({ id, steps, priority, numSpare, mayGoOn, place: this.#numCome++ });
    this.#waiting.sort((a, b) => a.priority - b.priority || b.place - a.place);
    this.#admit();
  }

  /** Returns what finished up to `nowMs`, in order of finishing. */
  advance(nowMs: number): number[] {
    const finished: number[] = [];
    while (this.#running.size > 0 && !this.#paused) {
      const stepMs = this.#stepMs(this.#running.size);
      const left = Math.min(...[...this.#running.values()].map(({ steps, done }) => steps - done));
      const endMs = this.#nowMs + left * stepMs;
      if (endMs > nowMs + tolerance) {
        this.#progress((nowMs - this.#nowMs) / stepMs, stepMs);
        break;
      }
      this.#progress(left, stepMs);
      this.#nowMs = Math.max(this.#nowMs, endMs);
      for (const [id, { steps, done, mayGoOn }] of this.#running) {
        if (steps - done > tolerance) continue;
        this.#running.delete(id);
        if (!mayGoOn) this.#begun.delete(id);
        finished.push(id);
      }
      this.#admit();
    }
    this.#nowMs = Math.max(this.#nowMs, nowMs);
    return finished;
  }

  /** Milliseconds from the last `advance` to the next finish; undefined when nothing runs. */
  get untilFinishMs(): number | undefined {
    if (this.#running.size === 0 || this.#paused) return undefined;
    const left = Math.min(...[...this.#running.values()].map(({ steps, done }) => steps - done));
    return Math.max(0, left * this.#stepMs(this.#running.size));
  }

  /** Whole steps that a sequence has made; 0 while it waits. */
  stepsDone(id: number): number {
    return Math.floor((this.#running.get(id)?.done ?? 0) + tolerance);
  }

  remove(id: number): void {
    this.#waiting = this.#waiting.filter((waiting) => waiting.id !== id);
    this.#running.delete(id);
    this.#begun.delete(id);
    this.#admit();
  }

  /** So many steps, from the first on, are what a sequence has to make now; it keeps its slot, or its place among those that wait. */
  renew(id: number, steps: number): void {
    const sequence = this.#running.get(id);
    if (sequence) Object.assign(sequence, { steps, done: 0 });
    this.#waiting = this.#waiting.map((waiting) => (waiting.id === id ? { ...waiting, steps } : waiting));
  }

  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    this.#paused = false;
  }

  /** Steps that it has made, tokens of all sequences in them, and milliseconds that they took. */
  get made(): { readonly passes: number; readonly tokens: number; readonly ms: number } {
    return { passes: this.#passes, tokens: this.#tokens, ms: this.#madeMs };
  }

  #progress(steps: number, stepMs: number): void {
    this.#passes += steps;
    this.#madeMs += steps * stepMs;
    this.#tokens += steps * this.#running.size;
    for (const sequence of this.#running.values()) sequence.done += steps;
  }

  #admit(): void {
    while (this.#running.size < this.#slots) {
      const at = this.#waiting.findLastIndex(
        ({ id, numSpare }) => this.#begun.has(id) || this.#begun.size < this.#slots + numSpare, // DE4
      );
      const first = this.#waiting[at];
      if (!first) return;
      this.#waiting.splice(at, 1);
      const { id, steps, mayGoOn } = first;
      this.#begun.add(id);
      this.#running.set(id, { done: 0, steps, mayGoOn });
    }
  }
}

export type DecoderSequence = {
  readonly id: number;
  readonly steps: number;
  /** default: 0 */
  readonly priority?: number | undefined;
  /** sequences that may have begun beyond the slots where this one begins; default: 0 */
  readonly numSpare?: number | undefined;
  /** more steps may be added once these are done; default: false */
  readonly mayGoOn?: boolean | undefined;
};

type Waiting = Readonly<Required<{ [Key in keyof DecoderSequence]: NonNullable<DecoderSequence[Key]> }>> & {
  readonly place: number;
};

/** Rounding of sums of steps and milliseconds, far below one of either. */
const tolerance = 1e-6;
