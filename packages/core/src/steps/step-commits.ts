/**
 * From what calls change to what a step commits: the order of steps, and the saved states that a commit names. Pure.
 *
 * Owner of: which steps are open, which have ended and wait for saved states, and which saved state each component has.
 * Steps and calls are told to it in the order in which they begin and end; commits are effects (RS8).
 */
import type { RunnerEffect, RunnerInput } from "../runner/runner-messages.ts";
import { SavedStates } from "./saved-states.ts";
import { StepOrder } from "./step-order.ts";

type Durable = Extract<RunnerInput, { type: "durable" }>;
type EndedStep = { readonly step: number; readonly seconds: number };

export type StepCommitsOptions = {
  readonly maxStaleness: number;
  /** states are saved beside the steps that follow, and not after each */
  readonly runsAhead: boolean;
  readonly nowMs: number;
  readonly emit: (effect: RunnerEffect) => void;
  /** a step has ended, and is not committed yet */
  readonly onEnded: (step: number) => void;
  /** not all ranks of the call have replied */
  readonly isOpen: (call: string) => boolean;
  /** the process that said so is still the present one of its rank */
  readonly isPresent: (input: Durable) => boolean;
};

export class StepCommits {
  readonly #options: StepCommitsOptions;
  readonly #order: StepOrder;
  readonly #states = new SavedStates();
  /** states that were on the disk before all ranks of their call had replied */
  readonly #early = new Map<number, Durable>();
  /** in order */
  readonly #uncommitted: EndedStep[] = [];
  #nowMs: number;

  constructor(options: StepCommitsOptions) {
    this.#options = options;
    this.#order = new StepOrder(options);
    this.#nowMs = options.nowMs;
  }

  set nowMs(nowMs: number) {
    this.#nowMs = nowMs;
  }

  /** The step that must be committed before this one begins; undefined when none is in the way (W2). */
  blockerOf(step: number): number | undefined {
    return this.#order.blockerOf(step);
  }
  /** The newest saved state of a component. */
  newest(component: string): string | undefined {
    return this.#states.newest(component);
  }
  /** The newest saved state of every component. */
  get newestStates(): Readonly<Record<string, string>> {
    return Object.fromEntries(this.#states.asOf());
  }
  /** Components with what no saved state has. */
  get unsaved(): readonly string[] {
    return this.#states.unsaved;
  }
  /** Steps that have ended and are not committed. */
  get uncommitted(): readonly number[] {
    return this.#uncommitted.map(({ step }) => step);
  }

  /** Steps that are not committed, and what each waits for. */
  shown(): ReturnType<StepOrder["shown"]> {
    return this.#order.shown();
  }

  begin(step: number): void {
    this.#order.begin(step, this.#nowMs);
  }

  callBegan(step: number): void {
    this.#order.callBegan(step);
  }

  callEnded(step: number): void {
    this.#order.callEnded(step);
    this.#commitWhole();
  }

  bodyEnded(step: number): void {
    this.#order.bodyEnded(step);
    this.#commitWhole();
  }

  /** Answers with when the step began. */
  committed(step: number): number {
    return this.#order.committed(step);
  }

  restore(states: Readonly<Record<string, string>>): void {
    for (const [component, path] of Object.entries(states)) this.#states.save(component, path, undefined);
  }

  /** A call has ended with the state that it left. */
  saved(component: string, path: string, step: number | undefined): void {
    this.#states.save(component, path, step);
    this.#options.emit({ type: "saved", path });
  }

  /** A call has ended on all ranks, and what it changed is in their memory alone. */
  changed(component: string, step: number | undefined, sequence: number): void {
    this.#states.changed(component, step, sequence);
    const early = this.#early.get(sequence);
    this.#early.delete(sequence);
    if (early !== undefined && this.#options.isPresent(early)) this.durable(early);
  }

  /** RS8. A call that has not ended on all ranks may start over, and what it saved is of no account then. */
  durable(input: Durable): void {
    const { component, sequence, step, path } = input;
    if (this.#options.isOpen(`${sequence}/0`)) {
      this.#early.set(sequence, input);
      return;
    }
    this.#states.save(component, path, step, sequence);
    if (path !== undefined) this.#options.emit({ type: "saved", path });
    this.#commitWhole();
  }

  /** RS8: steps that have ended, up to the last one that is whole in saved states. */
  #commitWhole(): void {
    const { runsAhead, onEnded, emit } = this.#options;
    for (const step of this.#order.ended()) {
      const seconds = this.#order.secondsOf(step, this.#nowMs);
      onEnded(step);
      if (runsAhead) {
        this.#uncommitted.push({ step, seconds });
        emit({ type: "ended", step });
      } else this.#commit({ step, seconds });
    }
    const newest = this.#uncommitted.findLastIndex(({ step }) => this.#states.isWhole(step));
    const due = this.#uncommitted.splice(0, newest + 1);
    const last = due.pop();
    if (last !== undefined) this.#commit(last, due);
  }

  #commit({ step, seconds }: EndedStep, earlier: readonly EndedStep[] = []): void {
    const states = Object.fromEntries(this.#states.asOf(step));
    this.#options.emit({ type: "commit", step, seconds, states, ...(earlier.length > 0 ? { earlier } : {}) });
  }
}
