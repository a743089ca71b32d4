/**
 * When steps begin and in which order they are committed. Pure: time arrives with inputs, and what is to be done goes
 * back to whoever asked.
 *
 * W2 a step begins only when at most `maxStaleness` earlier ones are uncommitted; or, where states are saved beside the
 *    steps that follow (`runsAhead`), are under way.
 * J1 a step is committed when its body has ended and nothing that it called is under way, after all steps before it.
 */
type OpenStep = { readonly startedMs: number; pending: number; bodyEnded: boolean; hasEnded: boolean };

export class StepOrder {
  readonly #maxStaleness: number;
  readonly #runsAhead: boolean;
  readonly #open = new Map<number, OpenStep>();
  #lastEndedMs: number;

  constructor(options: { readonly maxStaleness: number; readonly runsAhead?: boolean; readonly nowMs: number }) {
    this.#maxStaleness = options.maxStaleness;
    this.#runsAhead = options.runsAhead === true;
    this.#lastEndedMs = options.nowMs;
  }

  /** The step that must be committed, or have ended, before this one begins; undefined when none is in the way (W2). */
  blockerOf(index: number): number | undefined {
    const blocker = index - 1 - this.#maxStaleness;
    const step = this.#open.get(blocker);
    return step === undefined || (this.#runsAhead && step.hasEnded) ? undefined : blocker;
  }

  /** `pending`: what it called and waits for; `blocks`: the first step that does not begin before it. */
  shown(): { step: number; state: "open" | "body ended" | "ended"; pending: number; blocks: number | undefined }[] {
    return [...this.#open].map(([step, { pending, bodyEnded, hasEnded }]) => {
      const blocks = step + 1 + this.#maxStaleness;
      const state = hasEnded ? "ended" : bodyEnded ? "body ended" : "open";
      return { step, state, pending, blocks: this.blockerOf(blocks) === step ? blocks : undefined };
    });
  }

  /** Steps begin in ascending order. */
  begin(index: number, nowMs: number): void {
    this.#open.set(index, { startedMs: nowMs, pending: 0, bodyEnded: false, hasEnded: false });
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

  /** The steps that have ended since, in order, each once. */
  ended(): number[] {
    const ended: number[] = [];
    for (const [index, step] of this.#open) {
      if (step.hasEnded) continue;
      if (!step.bodyEnded || step.pending > 0) break; // nor is any later one
      step.hasEnded = true;
      ended.push(index);
    }
    return ended;
  }

  /** Seconds that count for a step that has ended. Overlapping steps share their time: it is since the one before. */
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
