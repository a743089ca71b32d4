/**
 * Paces the steps of a workflow and commits them, in order, to the journal.
 *
 * Owner of: the promises of the steps under way, what each reported, what has been committed. When steps begin and end is
 * decided by `RunnerState`.
 *
 * W2: a step begins only when at most `maxStaleness` earlier ones are uncommitted, so weights that generate in it lag
 *    those that it trains by at most so many steps, each of `epochs` × `minibatches` versions.
 * J1: a step is committed when everything that it called has ended well and all steps before it are committed, with the
 *    states that it left, not those of later steps that overlap it; the commit is one synced journal record.
 */
import { TreadleError } from "@treadle/contracts";
import type { Channel } from "../../author/channel/channel.ts";
import type { Carried, Dataset, Metrics, Position, Step, Unfinished } from "../../author/workflow.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import type { CarriedFiles } from "./carried-files.ts";
import { CarriedItems, carriedId, drawnOf } from "./carried-items.ts";
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
  /** what waits, whole, where a resume has it so */
  readonly carriedFiles: Pick<CarriedFiles, "waiting" | "save">;
  readonly loop: RunnerLoop;
  /** saved states as a commit names them */
  readonly states: (states: Readonly<Record<string, string>>) => States;
  /** makes calls and puts that follow belong to a step */
  readonly enter: (step: number | undefined) => void;
  readonly onStarted: (step: number) => void;
  readonly onCommitted: (step: CommittedStep) => Promise<void>;
  readonly warn: (line: string) => void;
  /** where states are saved beside the steps that follow: how many steps may wait for theirs, and how to save what is not */
  readonly ahead?: { readonly maxOpen: number; readonly saveStates: () => Promise<void> } | undefined;
  /** work that needs all steps to have ended, due before the next one; undefined when there is none */
  readonly between?: (() => (() => Promise<void>) | undefined) | undefined;
};

type OpenStep = {
  readonly index: number;
  readonly items: readonly string[];
  /** that it leaves in its dataset */
  readonly position: Position | undefined;
  readonly metrics: Record<string, number>;
  /** as the journal has them */
  readonly carried: string[];
  /** of these, what is saved whole, by id */
  readonly whole: Map<string, unknown>;
  /** ids, by cause */
  readonly cut: Map<string, string[]>;
  failure: unknown;
  /** nothing of it is under way any more; where states are saved with each step, it is committed */
  readonly ended: Promise<void>;
  readonly committed: Promise<void>;
  end: () => void;
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
  readonly #carried: CarriedItems;
  /** the step of each id, until two of one id have been warned of */
  #stepOfId: Map<string, number> | undefined = new Map();

  constructor(options: StepTrackerOptions) {
    this.#options = options;
    this.#carried = new CarriedItems(options.journal.records.filter((record) => record.type === "step"));
    options.loop.on("ended", ({ step }) => this.#open.get(step)?.end());
    options.loop.on("commit", ({ step, seconds, states, earlier = [] }) =>
      this.#due([...earlier, { step, seconds }], options.states(states)),
    );
  }

  get current(): number | undefined {
    return this.#current?.index;
  }

  /** No further step begins. */
  stop(): void {
    this.#stopping = true;
  }

  async *steps<T>(dataset: Dataset<T>): AsyncGenerator<Step<T>> {
    const { journal, totalSteps, loop, carriedFiles } = this.#options;
    this.#carried.restored(carriedFiles.waiting); // CI3
    const first = (journal.lastStep?.step ?? 0) + 1;
    try {
      for (let index = first; index <= totalSteps && !this.#stopping; index++) {
        const blocker = loop.state.blockerOf(index); // W2
        if (blocker !== undefined) await this.#open.get(blocker)?.ended;
        for (const step of this.#open.values()) if (step.failure !== undefined) throw step.failure;
        const { ahead } = this.#options;
        if (ahead !== undefined && this.#open.size >= ahead.maxOpen) await this.#settled();
        await this.#between();
        if (this.#stopping) break;
        const drawn = drawnOf(index, await dataset(index, this.#carried.now as Carried<T>));
        const { items: batch, position } = drawn;
        this.#watchIds(index, batch);
        const step = openStep(index, batch.map(itemId), position);
        this.#carried.given(step.items);
        this.#carried.left(position); // CI4
        this.#open.set(index, step);
        loop.feed({ type: "begin-step", step: index });
        this.#current = step;
        this.#options.enter(index);
        this.#options.onStarted(index);
        yield {
          index,
          isLast: index === totalSteps,
          batch,
          carry: (unfinished, how) => this.#carry(step, unfinished, how),
        };
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
    const { items } = this.#carried.now;
    const names = items.slice(0, 3).map((item) => `'${ownId(item)}'`);
    if (items.length > 0 && this.#open.size === 0 && !this.#stopping)
      this.#options.warn(
        `'${items.length}' items wait for a step after the last, such as ${names.join(", ")}; more steps would train them`,
      );
  }

  /** Prompts of one id are sampled alike, and their groups are taken for one. */
  #watchIds(index: number, batch: readonly unknown[]): void {
    for (const item of batch) {
      const id = ownId(item);
      const known = this.#stepOfId;
      if (id === undefined || known === undefined || this.#carried.has(id)) continue;
      const before = known.get(id);
      if (before !== undefined) {
        this.#options.warn(
          `two items are called '${id}', of steps ${before} and ${index}: an id names the group of a prompt and seeds what is sampled for it; give each item of a run an id of its own, as \`\${step}.\${index}\``,
        );
        this.#stepOfId = undefined;
      } else if (known.size < maxIds) known.set(id, index);
    }
  }

  #carry<T>(step: OpenStep, unfinished: Pick<Channel<T>, "batches">, { kept, saved, cut }: Unfinished<T> = {}): void {
    if (this.#current !== step)
      throw new TreadleError(
        "workflow.invalid",
        `step ${step.index} was told to carry items on when its body had ended; do so within the body of the loop`,
      );
    const carrying = async (): Promise<void> => {
      for await (const batch of unfinished.batches())
        for (const item of batch) {
          const cause = cut?.(item);
          if (cause === undefined) {
            step.carried.push(this.#carried.carry(item, kept ? kept(item) : item));
            if (saved?.(item)) step.whole.set(carriedId(item), item);
          } else step.cut.set(cause, [...(step.cut.get(cause) ?? []), carriedId(item)]);
        }
    };
    // Whoever failed to put them says so itself.
    this.track(carrying().catch(unlessOfProducer));
  }

  async #between(): Promise<void> {
    const { between } = this.#options;
    if (!between?.()) return;
    await this.#settled();
    await between()?.();
  }

  /** All steps that have begun have ended, and are committed. */
  async #settled(): Promise<void> {
    const steps = [...this.#open.values()];
    await Promise.all(steps.map((step) => step.ended));
    await this.#options.ahead?.saveStates();
    await Promise.all(steps.map((step) => step.committed));
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
    await this.#settled();
  }

  #due(due: readonly { readonly step: number; readonly seconds: number }[], state: States): void {
    const steps = due.map(({ step, seconds }) => ({ step: this.#open.get(step) as OpenStep, seconds }));
    this.#commits = this.#commits.then(() => this.#commit(steps, state));
    this.#commits.catch((error) => {
      for (const { step } of steps) {
        step.failure ??= error;
        step.reject(error);
      }
    });
  }

  async #commit(steps: readonly { readonly step: OpenStep; readonly seconds: number }[], state: States): Promise<void> {
    const { journal, loop, carriedFiles, onCommitted } = this.#options;
    const waiting = await carriedFiles.save(steps.map(({ step }) => step));
    const records = steps.map(({ step: { index, items, position, metrics, carried, cut }, seconds }, at) => ({
      ...{ step: index, seconds, metrics },
      items: [...items],
      ...(position !== undefined && { position }),
      ...(carried.length > 0 && { carried }),
      ...(cut.size > 0 && { cut: Object.fromEntries(cut) }),
      ...(waiting && at === steps.length - 1 && { waiting }),
    }));
    await journal.appendSteps(records, state);
    for (const [at, { step, seconds }] of steps.entries()) {
      const { index, metrics } = step;
      await onCommitted({ step: index, seconds, metrics, state: at === steps.length - 1 ? state : {} });
      this.#open.delete(index);
      loop.feed({ type: "committed", step: index });
      step.resolve();
    }
  }
}

function openStep(index: number, items: readonly string[], position: Position | undefined): OpenStep {
  const ended = awaited();
  const committed = awaited();
  return {
    index,
    items,
    position,
    metrics: {},
    carried: [],
    whole: new Map(),
    cut: new Map(),
    failure: undefined,
    ended: ended.promise,
    committed: committed.promise,
    end: ended.resolve,
    resolve: () => {
      ended.resolve();
      committed.resolve();
    },
    reject: (error) => {
      ended.reject(error);
      committed.reject(error);
    },
  };
}

function unlessOfProducer(error: unknown): void {
  if (!(error instanceof TreadleError) || error.code !== "channel.producer-failed") throw error;
}

/** so many are remembered */
const maxIds = 100_000;

function ownId(item: unknown): string | undefined {
  const id = (item as { id?: unknown } | null)?.id;
  return typeof id === "string" || typeof id === "number" ? String(id) : undefined;
}

const itemId = (item: unknown, position: number): string => ownId(item) ?? String(position);

type Awaited = { readonly promise: Promise<void>; resolve: () => void; reject: (error: unknown) => void };

/** Nobody need look at its failure. */
function awaited(): Awaited {
  let resolve!: () => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<void>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  promise.catch(() => {});
  return { promise, resolve, reject };
}
