import { ProjectModule } from "@treadle/contracts";
import type { TrackedEnd, TrackedRow, Tracker } from "./tracker-feed.ts";

/** What a module's `createTracker` is told. */
export type CreateTrackerContext = {
  readonly runId: string;
  /** of the run */
  readonly folder: string;
  /** that the run is to have */
  readonly steps: number;
  /** as the configuration gives them; it checks them itself */
  readonly settings: Readonly<Record<string, unknown>>;
};

/**
 * A tracker of the project's own. What its functions throw, reject or wait long for is told once, and reaches no step (TK1). It runs in
 * the runner's process: what it throws outside of their calls, as in a timer or in a promise that nobody awaits, ends the run;
 * while it computes without awaiting anything, the runner waits; and a `process.exitCode` that it sets is that of a run that
 * ends well.
 */
export type OwnTracker = {
  write(rows: readonly TrackedRow[], signal: AbortSignal): Promise<void> | void;
  close?(end: TrackedEnd, signal: AbortSignal): Promise<void> | void;
};

/** What a module of trackers exports. */
export type CreateTracker = (context: CreateTrackerContext) => Promise<OwnTracker> | OwnTracker;

/** The one that a module of the project makes when there is something to write. */
export class ModuleTracker implements Tracker {
  readonly name: string;
  readonly #module: ProjectModule;
  readonly #context: CreateTrackerContext;
  #tracker: OwnTracker | undefined;

  constructor(
    module: string,
    load: (module: string) => Promise<Readonly<Record<string, unknown>>>,
    context: CreateTrackerContext,
  ) {
    this.name = `'${module}'`;
    this.#module = new ProjectModule({ key: "module of observe.trackers", module, load });
    this.#context = context;
  }

  async open(): Promise<void> {
    const tracker = await this.#module.create({ creator: "createTracker", what: "tracker" }, this.#context);
    this.#module.check(tracker, ["write"], { what: "tracker", see: "; return { write(rows), close(end) }" });
    this.#tracker = tracker as OwnTracker;
  }

  async write(rows: readonly TrackedRow[], signal: AbortSignal): Promise<void> {
    await this.#tracker?.write(rows, signal);
  }

  async close(end: TrackedEnd, signal: AbortSignal): Promise<void> {
    await this.#tracker?.close?.(end, signal);
  }
}
