/**
 * When steps begin and in which order they are committed. Pure: time arrives with inputs, and what is to be done goes
 * back to whoever asked.
 *
 * W2 a step begins only when at most `maxStaleness` earlier ones are uncommitted.
 * J1 a step is committed when its body has ended and nothing that it called is under way, after all steps before it.
 */
type OpenStep = { readonly startedMs: number; pending: number; bodyEnded: boolean; isCommitting: boolean };

export class StepOrder {
  readonly #maxStaleness: number;
  readonly #open = new Map<number, OpenStep>();
  #lastEndedMs: number;

  constructor(options: { readonly maxStaleness: number; readonly nowMs: number }) {
    this.#maxStaleness = options.maxStaleness;
    this.#lastEndedMs = options.nowMs;
  }

  /** The step that must be committed before this one begins; undefined when none is in the way (W2). */
  blockerOf(index: number): number | undefined {
    const blocker = index - 1 - this.#maxStaleness;
    return this.#open.has(blocker) ? blocker : undefined;
  }

  /** Steps begin in ascending order. */
  begin(index: number, nowMs: number): void {
    this.#open.set(index, { startedMs: nowMs, pending: 0, bodyEnded: false, isCommitting: false });
  }

  /** Something that the step must wait for has begun, or has ended. */
  callBegan(index: number): void {
    this.#step(index).pending++;
  }

  callEnded(index: number): void {
    this.#step(index).pending--;
  }

  /** May be said twice, and after the commit. */
  bodyEnded(index: number): void {
    const step = this.#open.get(index);
    if (step) step.bodyEnded = true;
  }

  /** The steps whose commit is due, in order, each once. */
  due(): number[] {
    const due: number[] = [];
    for (const [index, step] of this.#open) {
      if (step.isCommitting) continue;
      if (!step.bodyEnded || step.pending > 0) break; // nor is any later one
      step.isCommitting = true;
      due.push(index);
    }
    return due;
  }

  /** Seconds that count for a step whose commit begins. Overlapping steps share their time: it is since the one before. */
  secondsOf(index: number, nowMs: number): number {
    const seconds = (nowMs - Math.max(this.#step(index).startedMs, this.#lastEndedMs)) / 1000;
    this.#lastEndedMs = nowMs;
    return seconds;
  }

  /** Answers with when the step began. */
  committed(index: number): number {
    const { startedMs } = this.#step(index);
    this.#open.delete(index);
    return startedMs;
  }

  #step(index: number): OpenStep {
    return this.#open.get(index) as OpenStep;
  }
}
