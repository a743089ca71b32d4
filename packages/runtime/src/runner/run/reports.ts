/**
 * What a workflow says of its run besides its calls: metrics, and what it does once.
 *
 * Owner of: reports that are still calls, outside of steps, and the metrics of the act of `once` that is under way.
 */
import { savesInBackground, TreadleError } from "@treadle/contracts";
import { CallHandle } from "../../author/group/handle.ts";
import type { Metrics, Progress } from "../../author/workflow.ts";
import type { OpenedRun } from "./open-run.ts";
import { averageRanks, checkedMetrics } from "./reported-metrics.ts";
import type { RunRecords } from "./run-records.ts";
import type { StepTracker } from "./step-tracker.ts";

type ReportedRun = Pick<OpenedRun, "config" | "journal" | "states" | "cluster" | "emit" | "watch">;

export class Reports {
  readonly #run: ReportedRun;
  readonly #records: RunRecords;
  readonly #tracker: StepTracker;
  readonly #open: Promise<unknown>[] = [];
  #reportedOnce: Record<string, number> | undefined;
  /** what `once` is doing */
  #onceName: string | undefined;

  constructor(run: ReportedRun, records: RunRecords, tracker: StepTracker) {
    this.#run = run;
    this.#records = records;
    this.#tracker = tracker;
    run.watch((event) => {
      // What is done once goes on when the processes that its first call started are there.
      const isLaunched = event.type === "phase" && event.name === "launching" && event.done === event.total;
      if (isLaunched && this.#onceName !== undefined) this.#sayPhase(this.#onceName);
    });
  }

  report(metrics: Metrics | CallHandle<Metrics>): void {
    const step = this.#tracker.current;
    if (!(metrics instanceof CallHandle)) {
      this.#record(checkedMetrics(metrics, "the report"), step);
      return;
    }
    const work = metrics.then((perRank) => this.#record(averageRanks(perRank, `'${metrics.label}'`), step));
    work.catch(() => {}); // the step, or the call itself, reports the failure
    this.#tracker.track(work);
    if (step === undefined) this.#open.push(work);
  }

  async once<T>(name: string, act: (progress: Progress) => PromiseLike<T>): Promise<T> {
    const { journal, states, cluster } = this.#run;
    const done = journal.once(name);
    if (done) return done.value as T;
    if (savesInBackground(this.#run.config.checkpoints)) {
      if (this.#tracker.current !== undefined) {
        throw new TreadleError(
          "workflow.invalid",
          `once('${name}') was called within a step, whose changes are saved later; call it outside of steps, or set checkpoints.stateEverySteps to 1 and checkpoints.inBackground to false`,
        );
      }
      await this.#tracker.drained();
    }
    const outer = this.#reportedOnce;
    const metrics: Record<string, number> = {};
    this.#reportedOnce = metrics;
    const outerName = this.#onceName;
    this.#onceName = name;
    this.#sayPhase(name);
    const value = await act((done, total) => this.#sayPhase(name, checkedProgress(name, done, total)));
    await this.settled();
    this.#reportedOnce = outer;
    this.#onceName = outerName;
    const state = states.relative(cluster.newestStates);
    // What is kept for other machines is what the newest record names.
    const { waiting } = journal.lastStep ?? {};
    await journal.append({ type: "once", name, value: value ?? null, metrics, state, ...(waiting && { waiting }) });
    await states.prune(journal.state);
    return value;
  }

  /** Resolves when what was reported outside of steps is there. */
  async settled(): Promise<void> {
    await Promise.all(this.#open);
  }

  #sayPhase(name: string, progress?: { readonly done: number; readonly total: number }): void {
    this.#run.emit({ type: "phase", atMs: Date.now(), name, ...progress });
  }

  #record(metrics: Metrics, step: number | undefined): void {
    this.#tracker.record(metrics, step);
    if (step === undefined && this.#reportedOnce) Object.assign(this.#reportedOnce, metrics);
    const accuracy = metrics["accuracy"];
    if (accuracy !== undefined) this.#records.evaluated(accuracy, step);
  }
}

function checkedProgress(name: string, done: number, total: number): { readonly done: number; readonly total: number } {
  if (done >= 0 && done <= total && total > 0 && Number.isFinite(total)) return { done, total };
  throw new TreadleError(
    "workflow.invalid",
    `once('${name}') says that '${done}' of '${total}' are done; give a number from 0 to the total, which is above 0`,
  );
}
