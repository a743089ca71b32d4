/**
 * Paces the steps of a workflow and commits them, in order, to the journal.
 *
 * Owner of: the promises of the steps under way, what each reported, what has been committed. When steps begin and end is
 * decided in `step-order.ts`.
 *
 * W2 a step begins only when at most `maxStaleness` earlier ones are uncommitted, so weights that generate in it lag
 *    those that it trains by at most so many optimiser steps.
 * J1 a step is committed when everything that it called has ended well and all steps before it are committed, with the
 *    states that it left, not those of later steps that overlap it; the commit is one synced journal record.
 */
import { TreadleError } from "@treadle/contracts";
import type { Journal } from "./journal.ts";
import { StepOrder } from "./step-order.ts";
import type { Dataset, Metrics, Step } from "./workflow.ts";

export type CommittedStep = {
  readonly step: number;
  readonly seconds: number;
  readonly metrics: Metrics;
  readonly state: Readonly<Record<string, string>>;
};

export type StepTrackerOptions = {
  readonly journal: Journal;
  readonly totalSteps: number;
  readonly maxStaleness: number;
  readonly now: () => number;
  /** the saved states as of the end of a step */
  readonly states: (step: number) => Readonly<Record<string, string>>;
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
  readonly #order: StepOrder;
  readonly #open = new Map<number, OpenStep>();
  #current: OpenStep | undefined;
  /** the step in whose midst the workflow left the loop */
  #left: OpenStep | undefined;
  #commits: Promise<void> = Promise.resolve();
  #stopping = false;

  constructor(options: StepTrackerOptions) {
    this.#options = options;
    this.#order = new StepOrder({ maxStaleness: options.maxStaleness, nowMs: options.now() });
  }

  get current(): number | undefined {
    return this.#current?.index;
  }

  /** No further step begins. */
  stop(): void {
    this.#stopping = true;
  }

  async *steps<T>(dataset: Dataset<T>): AsyncGenerator<Step<T>> {
    const { journal, totalSteps, now } = this.#options;
    const first = (journal.lastStep?.step ?? 0) + 1;
    try {
      for (let index = first; index <= totalSteps && !this.#stopping; index++) {
        const blocker = this.#order.blockerOf(index); // W2
        if (blocker !== undefined) await this.#open.get(blocker)?.committed;
        for (const step of this.#open.values()) if (step.failure !== undefined) throw step.failure;
        await this.#between();
        if (this.#stopping) break;
        const batch = await dataset(index);
        const step = openStep(index, batch.map(itemId));
        this.#open.set(index, step);
        this.#order.begin(index, now());
        this.#current = step;
        this.#options.enter(index);
        this.#options.onStarted(index);
        yield { index, isLast: index === totalSteps, batch };
        this.#current = undefined;
        this.#options.enter(undefined);
        this.#order.bodyEnded(index);
        this.#settle();
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
    this.#order.callBegan(step.index);
    work.then(
      () => {
        this.#order.callEnded(step.index);
        this.#settle();
      },
      (error: unknown) => {
        if (error instanceof TreadleError && error.code === "call.cancelled") {
          this.#order.callEnded(step.index); // somebody asked for it; a call that failed for that reason says so with its own code
          this.#settle();
          return;
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
    if (this.#left) this.#order.bodyEnded(this.#left.index);
    this.#settle();
    await Promise.all([...this.#open.values()].map((step) => step.committed));
  }

  #settle(): void {
    for (const index of this.#order.due()) {
      const step = this.#open.get(index) as OpenStep;
      const state = this.#options.states(index);
      this.#commits = this.#commits.then(() => this.#commit(step, state));
      this.#commits.catch((error) => {
        step.failure ??= error;
        step.reject(error);
      });
    }
  }

  async #commit(step: OpenStep, state: Readonly<Record<string, string>>): Promise<void> {
    const { journal, now, onCommitted } = this.#options;
    const { index, items, metrics } = step;
    const seconds = this.#order.secondsOf(index, now());
    await journal.append({ type: "step", step: index, seconds, metrics, items: [...items], state: { ...state } });
    await onCommitted({ step: index, seconds, metrics, state });
    this.#open.delete(index);
    this.#order.committed(index);
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
