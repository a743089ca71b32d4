/**
 * Paces the steps of a workflow and commits them, in order, to the journal.
 *
 * Owner of: the promises of the steps under way, what each reported, what has been committed. When steps begin and end is
 * decided by `RunnerState`.
 *
 * W2: a step begins only when at most `maxStaleness` earlier ones are uncommitted, so weights that generate in it lag
 *    those that it trains by at most so many optimiser steps.
 * J1: a step is committed when everything that it called has ended well and all steps before it are committed, with the
 *    states that it left, not those of later steps that overlap it; the commit is one synced journal record.
 */
import { TreadleError } from "@treadle/contracts";
import type { Dataset, Metrics, Step } from "../../author/workflow.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import type { Journal, States } from "./journal.ts";

export type CommittedStep = {
  readonly step: number;
  readonly seconds: number;
  readonly metrics: Metrics;
  readonly state: States;
};

export type StepTrackerOptions = {
  readonly journal: Journal;
  readonly totalSteps: number;
  readonly loop: RunnerLoop;
  /** saved states as a commit names them */
  readonly states: (states: Readonly<Record<string, string>>) => States;
  /** makes calls and puts that follow belong to a step */
  readonly enter: (step: number | undefined) => void;
  readonly onStarted: (step: number) => void;
  readonly onCommitted: (step: CommittedStep) => Promise<void>;
  /** work that needs all steps to have ended, due before the next one; undefined when there is none */
  readonly between?: (() => (() => Promise<void>) | undefined) | undefined;
};

type OpenStep = {
  readonly index: number;
  readonly items: readonly string[];
  readonly metrics: Record<string, number>;
  failure: unknown;
  readonly committed: Promise<void>;
  resolve: () => void;
  reject: (error: unknown) => void;
};

export class StepTracker {
  readonly #options: StepTrackerOptions;
  readonly #open = new Map<number, OpenStep>();
  #current: OpenStep | undefined;
  /** the step in whose midst the workflow left the loop */
  #left: OpenStep | undefined;
  #commits: Promise<void> = Promise.resolve();
  #stopping = false;

  constructor(options: StepTrackerOptions) {
    this.#options = options;
    options.loop.on("commit", ({ step, seconds, states }) => this.#due(step, seconds, options.states(states)));
  }

  get current(): number | undefined {
    return this.#current?.index;
  }

  /** No further step begins. */
  stop(): void {
    this.#stopping = true;
  }

  async *steps<T>(dataset: Dataset<T>): AsyncGenerator<Step<T>> {
    const { journal, totalSteps, loop } = this.#options;
    const first = (journal.lastStep?.step ?? 0) + 1;
    try {
      for (let index = first; index <= totalSteps && !this.#stopping; index++) {
        const blocker = loop.state.blockerOf(index); // W2
        if (blocker !== undefined) await this.#open.get(blocker)?.committed;
        for (const step of this.#open.values()) if (step.failure !== undefined) throw step.failure;
        await this.#between();
        if (this.#stopping) break;
        const batch = await dataset(index);
        const step = openStep(index, batch.map(itemId));
        this.#open.set(index, step);
        loop.feed({ type: "begin-step", step: index });
        this.#current = step;
        this.#options.enter(index);
        this.#options.onStarted(index);
        yield { index, isLast: index === totalSteps, batch };
        this.#current = undefined;
        this.#options.enter(undefined);
        loop.feed({ type: "end-body", step: index });
      }
    } finally {
      this.#left = this.#current;
      this.#current = undefined;
      this.#options.enter(undefined);
    }
    await this.drained();
  }

  async #between(): Promise<void> {
    const { between } = this.#options;
    if (!between?.()) return;
    await Promise.all([...this.#open.values()].map((step) => step.committed));
    await between()?.();
  }

  /** Something that the current step must wait for before it is committed. */
  track(work: PromiseLike<unknown>): void {
    const step = this.#current;
    if (!step) return;
    const { loop } = this.#options;
    const { index } = step;
    loop.feed({ type: "begin-work", step: index });
    work.then(
      () => loop.feed({ type: "end-work", step: index }),
      (error: unknown) => {
        // Somebody asked for it; a call that failed for that reason says so with its own code.
        if (error instanceof TreadleError && error.code === "call.cancelled") {
          return loop.feed({ type: "end-work", step: index });
        }
        step.failure ??= error;
        step.reject(error);
      },
    );
  }

  /** Adds to the metrics of a step that is open; false when there is none. */
  record(metrics: Metrics, index = this.current): boolean {
    const step = index === undefined ? undefined : this.#open.get(index);
    if (step) Object.assign(step.metrics, metrics);
    return step !== undefined;
  }

  /**
   * Resolves when every step that began is committed. Who calls it has ended well, so the body of a step that it left
   * in its midst has ended too; after a throw nobody calls it.
   */
  async drained(): Promise<void> {
    if (this.#left) this.#options.loop.feed({ type: "end-body", step: this.#left.index });
    await Promise.all([...this.#open.values()].map((step) => step.committed));
  }

  #due(index: number, seconds: number, state: States): void {
    const step = this.#open.get(index) as OpenStep;
    this.#commits = this.#commits.then(() => this.#commit(step, seconds, state));
    this.#commits.catch((error) => {
      step.failure ??= error;
      step.reject(error);
    });
  }

  async #commit(step: OpenStep, seconds: number, state: States): Promise<void> {
    const { journal, loop, onCommitted } = this.#options;
    const { index, items, metrics } = step;
    await journal.append({ type: "step", step: index, seconds, metrics, items: [...items], state: { ...state } });
    await onCommitted({ step: index, seconds, metrics, state });
    this.#open.delete(index);
    loop.feed({ type: "committed", step: index });
    step.resolve();
  }
}

function openStep(index: number, items: readonly string[]): OpenStep {
  let resolve!: () => void;
  let reject!: (error: unknown) => void;
  const committed = new Promise<void>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  committed.catch(() => {});
  return {
    index,
    items,
    metrics: {},
    failure: undefined,
    committed,
    resolve,
    reject,
  };
}

function itemId(item: unknown, position: number): string {
  const id = (item as { id?: unknown } | null)?.id;
  return typeof id === "string" || typeof id === "number" ? String(id) : String(position);
}
