/**
 * One run of a workflow, from its folder to its summary; new or resumed.
 *
 * Owner of: the run's folder and journal, its cluster, and the events that views fold over.
 *
 * J1: holds through the journal: a resumed run begins after the last committed step, with the states that
 * were committed with it. S1: what ends a run is its first failure, whoever noticed it first.
 */
import { basename, join } from "node:path";
import {
  type Plan,
  type RunEvent,
  type RunSummary,
  type RuntimeConfig,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { EventWriter, MetricsWriter, readMetrics } from "@treadle/observe";
import { CallHandle } from "../../author/group/handle.ts";
import type { Metrics, WorkflowContext } from "../../author/workflow.ts";
import { RunCluster } from "../cluster/run-cluster.ts";
import { connectNodes } from "../nodes/find-nodes.ts";
import type { Nodes } from "../nodes/nodes.ts";
import { AutoPlacement, type Learnt } from "../placement/auto-placement.ts";
import { Elasticity } from "../placement/elasticity.ts";
import type { PlacementFacts, PlannedChange } from "../placement/placement-facts.ts";
import { Checkpoints } from "./checkpoints.ts";
import { Journal } from "./journal.ts";
import { type KeptRun, openKeptRun } from "./kept-run.ts";
import type { LoadedWorkflow } from "./load-workflow.ts";
import type { RunFolder } from "./run-folder.ts";
import { openRunObservation, type RunObservation } from "./run-observation.ts";
import { RunTally } from "./run-tally.ts";
import { RunTrace } from "./run-trace.ts";
import { StateFiles } from "./state-files.ts";
import { type CommittedStep, StepTracker } from "./step-tracker.ts";

export type RunOptions = {
  /** folder of the workflow, with `run.ts` and `config.yaml` */
  readonly workflow: string;
  /** default: the workflow's `config.yaml` */
  readonly configFile?: string | undefined;
  /** `key.path=value` */
  readonly overrides?: readonly string[];
  /** where runs keep their folders */
  readonly runsRoot: string;
  readonly projectRoot: string;
  readonly onEvent: (event: RunEvent) => void;
  /**
   * Aborting once stops after the step under way. Abort it in a listener of `process.on("SIGINT")`, not of `once`: libraries
   * that write files send the signal again where nobody else listens any more, and that ends the process.
   */
  readonly stop?: AbortSignal | undefined;
  /** aborting ends everything at once */
  readonly kill?: AbortSignal | undefined;
  /** with `placement.mode: auto`: ignores the profile of earlier runs */
  readonly measureAnew?: boolean | undefined;
  /** decides where everything runs, instead of the mode */
  readonly decide?: ((facts: PlacementFacts, config: RuntimeConfig) => PlannedChange) | undefined;
  /** told the plan under which the run ended well, and what it is made of */
  readonly onPlaced?: ((plan: Plan, facts: PlacementFacts) => void) | undefined;
  /** with `placement.mode: auto`: told after each step what is known by now */
  readonly onLearnt?: ((learnt: Learnt) => void) | undefined;
};

export type RunResult = { readonly summary: RunSummary; readonly stopped: boolean };

export class Run {
  readonly #options: RunOptions;
  readonly #loaded: LoadedWorkflow;
  readonly #config: RuntimeConfig;
  readonly #folder: RunFolder;
  readonly #checkpoint: string | undefined;
  readonly #checkpoints: Checkpoints;
  readonly #startedMs = performance.now();
  readonly #tally = new RunTally();
  readonly #states: StateFiles;
  #lastCheckpoint = 0;
  #cluster!: RunCluster;
  #journal!: Journal;
  #tracker!: StepTracker;
  #metrics!: MetricsWriter;
  #events: EventWriter | undefined;
  #nodes: Nodes | undefined;
  /** the run as it is kept for other machines */
  #kept: KeptRun | undefined;
  #keptPlan: Plan | undefined;
  #observation: RunObservation | undefined;
  readonly #reports: Promise<unknown>[] = [];

  constructor(
    options: RunOptions,
    loaded: LoadedWorkflow,
    config: RuntimeConfig,
    folder: RunFolder,
    checkpoint?: string | undefined,
  ) {
    const onEvent = (event: RunEvent) => {
      this.#observation?.event(event);
      this.#events?.write(event);
      options.onEvent(event);
      // What is done once goes on when the processes that its first call started are there.
      const isLaunched = event.type === "phase" && event.name === "launching" && event.done === event.total;
      if (isLaunched && this.#onceName !== undefined) this.#sayPhase(this.#onceName);
    };
    this.#options = { ...options, onEvent };
    this.#loaded = loaded;
    this.#config = config;
    this.#folder = folder;
    this.#states = new StateFiles(folder);
    this.#checkpoint = checkpoint;
    this.#checkpoints = new Checkpoints(folder.checkpoints, config.checkpoints);
  }

  readonly #notice = (line: string): void =>
    this.#options.onEvent({ type: "log", atMs: Date.now(), worker: "runner", line, level: "warn" });

  async execute(): Promise<RunResult> {
    const lost = (error: Error) => this.#cluster?.abort(error);
    const release = await this.#folder.acquire(lost);
    try {
      await this.#folder.create();
      const { projectRoot } = this.#options;
      this.#nodes = await connectNodes(this.#config, projectRoot, this.#notice, this.#folder.runId);
      if (this.#config.cluster.nats?.durableRuns) {
        await this.#nodes?.claim(this.#folder.runId, lost);
        this.#kept = await openKeptRun(this.#config.cluster.nats, this.#folder, this.#notice);
      }
      this.#journal = this.#kept
        ? new Journal(this.#kept, `of run '${this.#folder.runId}'`)
        : await Journal.open(this.#folder.journalFile);
      this.#metrics = new MetricsWriter(this.#folder.metricsFile);
      this.#events = new EventWriter(this.#folder.eventsFile);
      return await this.#executeInFolder();
    } finally {
      await this.#observation?.close();
      this.#metrics?.close();
      this.#events?.close();
      await (this.#journal ?? this.#kept)?.close();
      await this.#nodes?.close();
      await release().catch(() => {});
    }
  }

  async #executeInFolder(): Promise<RunResult> {
    const { kill, onEvent, projectRoot } = this.#options;
    const asked = new AbortController();
    const stop = AbortSignal.any([asked.signal, ...(this.#options.stop ? [this.#options.stop] : [])]);
    const { runId } = this.#folder;
    const trace = this.#config.trace ? new RunTrace(this.#folder.traceFile, onEvent) : undefined;
    const auto = this.#autoPlacement();
    const elasticity = this.#elasticity(auto);
    const notice = this.#notice;
    const { decide } = this.#options;
    this.#observation = await openRunObservation(this.#config.observe, {
      runId,
      traffic: () => this.#cluster?.traffic,
      onNotice: notice,
    });
    const nodes = this.#nodes;
    await nodes?.find();
    this.#cluster = new RunCluster({
      runId,
      nodes,
      onStopAsked: () => asked.abort(),
      config: this.#config,
      projectRoot,
      plan: decide ? (facts) => decide(facts, this.#config) : auto && ((facts) => auto.plan(facts)),
      runFolder: this.#folder.path,
      logs: this.#folder.logs,
      stateFolder: this.#folder.state,
      workflowModule: this.#loaded.module,
      onEvent,
      telemetry: this.#observation?.telemetry,
      onSpans: (batch) => {
        trace?.add(batch);
        this.#observation?.spans(batch);
      },
    });
    this.#tracker = new StepTracker({
      journal: this.#journal,
      totalSteps: this.#config.steps,
      loop: this.#cluster.loop,
      states: (states) => this.#states.relative(states),
      enter: (step) => {
        this.#cluster.step = step;
      },
      onStarted: (step) => onEvent({ type: "step-started", atMs: Date.now(), step }),
      onCommitted: async (step) => {
        auto?.committed(step.step, step.seconds);
        await this.#committed(step);
      },
      between: () => {
        elasticity.placed();
        return elasticity.between() ?? auto?.between();
      },
    });
    this.#cluster.loop.on("saved", ({ path }) => this.#states.saved(path));
    this.#cluster.onCall((handle) => this.#tracker.track(handle));
    // The caller's signals may outlive the run.
    const over = new AbortController();
    const failed = new Promise<never>((_, reject) => {
      this.#cluster.onFailure(reject);
      const ended = new TreadleError("run.stopped", "the run was ended by the user");
      kill?.addEventListener("abort", () => reject(ended), { signal: over.signal });
    });
    failed.catch(() => {});
    stop.addEventListener("abort", () => this.#tracker.stop(), { signal: over.signal });
    if (stop.aborted) this.#tracker.stop();
    const queues = setInterval(() => this.#reportQueues(), 1000);
    try {
      await this.#begin();
      await Promise.race([this.#runWorkflow(), failed]);
      const stopped = stop.aborted && this.#tally.numSteps < this.#config.steps;
      await this.#finish(stopped);
      const summary = this.#summary();
      this.#options.onPlaced?.(this.#cluster.place(), this.#cluster.placementFacts);
      await this.#folder.writeJson(this.#folder.summaryFile, summary);
      trace?.stopReporting();
      await nodes?.record.ended(stopped ? "stopped" : "finished");
      onEvent({ type: "run-finished", atMs: Date.now(), summary });
      return { summary, stopped };
    } catch (error) {
      const first = this.#cluster.failure ?? error; // S1
      trace?.stopReporting();
      await nodes?.record.ended("failed", toErrorRecord(first).message);
      onEvent({ type: "run-failed", atMs: Date.now(), error: toErrorRecord(first) });
      throw first;
    } finally {
      over.abort();
      clearInterval(queues);
      await this.#cluster.close();
      trace?.close();
    }
  }

  #autoPlacement(): AutoPlacement | undefined {
    if (this.#config.placement.mode !== "auto") return undefined;
    const { projectRoot, onEvent, measureAnew, onLearnt } = this.#options;
    return new AutoPlacement(
      { workflow: this.#loaded.name, folder: this.#loaded.folder, projectRoot, config: this.#config, measureAnew },
      {
        learnt: (learnt) => onLearnt?.(learnt),
        components: () => this.#cluster.components,
        adopt: (planned) => this.#cluster.adopt(planned),
        measureSwaps: () => this.#cluster.measureSwaps(),
        observe: (observer) => {
          this.#cluster.observer = observer;
        },
        warn: (line) => onEvent({ type: "log", atMs: Date.now(), worker: "runner", line, level: "warn" }),
      },
    );
  }

  #elasticity(auto: AutoPlacement | undefined): Elasticity {
    return new Elasticity({
      revision: () => this.#cluster.nodesRevision,
      adapt: () => {
        const planned = this.#cluster.adapt();
        const isResized = planned !== undefined && this.#cluster.isElastic;
        return auto && isResized ? auto.plan(this.#cluster.placementFacts) : planned;
      },
      adopt: (planned) => this.#cluster.adopt(planned),
      warn: this.#notice,
    });
  }

  #resumedFrom: number | undefined;

  async #begin(): Promise<void> {
    const { runId, path } = this.#folder;
    const at = new Date().toISOString();
    const last = this.#journal.lastStep;
    const isResumed = this.#journal.records.length > 0;
    this.#nodes?.record.committed(last?.step ?? 0);
    if (isResumed) {
      this.#resumedFrom = last?.step ?? 0;
      await this.#journal.append({ type: "resumed", at, fromStep: this.#resumedFrom });
      const states = this.#checkpoint
        ? await this.#checkpointStates(this.#checkpoint)
        : this.#states.absolute(this.#journal.state);
      this.#cluster.restoreStates(states);
      await this.#states.forgetUncommitted(this.#journal.state);
      this.#resumeMetrics();
    } else await this.#journal.append({ type: "started", runId, workflow: this.#loaded.name, at });
    this.#options.onEvent({
      type: "run-started",
      atMs: Date.now(),
      runId,
      workflow: this.#loaded.name,
      mode: this.#config.placement.mode,
      steps: this.#config.steps,
      folder: path,
      ...(this.#resumedFrom === undefined ? {} : { resumedFrom: this.#resumedFrom }),
    });
  }

  async #runWorkflow(): Promise<void> {
    const context: WorkflowContext<never> = {
      cluster: this.#cluster,
      config: this.#config as never,
      runId: this.#folder.runId,
      steps: (dataset) => this.#tracker.steps(dataset),
      report: (metrics) => this.#report(metrics),
      once: (name, act) => this.#once(name, act),
    };
    await this.#loaded.workflow.run(context);
    await Promise.all(this.#reports);
    await this.#tracker.drained();
    await this.#writePlan();
  }

  /** The plan may change between steps. */
  async #writePlan(): Promise<void> {
    const plan = this.#cluster.place();
    if (plan === this.#keptPlan) return;
    this.#keptPlan = plan;
    await this.#folder.writeJson(this.#folder.planFile, plan);
    await this.#kept?.keep(this.#folder.planFile);
  }

  #report(metrics: Metrics | CallHandle<Metrics>): void {
    const step = this.#tracker.current;
    if (!(metrics instanceof CallHandle)) {
      this.#record(metrics, step);
      return;
    }
    const work = metrics.then((perRank) => this.#record(averageRanks(perRank), step));
    work.catch(() => {}); // the step, or the call itself, reports the failure
    this.#tracker.track(work);
    if (step === undefined) this.#reports.push(work);
  }

  #record(metrics: Metrics, step: number | undefined): void {
    this.#tracker.record(metrics, step);
    if (step === undefined && this.#reportedOnce) Object.assign(this.#reportedOnce, metrics);
    const accuracy = metrics["accuracy"];
    if (accuracy === undefined) return;
    this.#tally.evaluated(accuracy);
    const at = step ?? this.#journal.lastStep?.step ?? 0;
    this.#options.onEvent({ type: "evaluation", atMs: Date.now(), step: at, accuracy });
  }

  /** what is reported within the act of `once` that is under way */
  #reportedOnce: Record<string, number> | undefined;

  /** what `once` is doing */
  #onceName: string | undefined;

  #sayPhase(name: string): void {
    this.#options.onEvent({ type: "phase", atMs: Date.now(), name });
  }

  async #once<T>(name: string, act: () => PromiseLike<T>): Promise<T> {
    const done = this.#journal.once(name);
    if (done) return done.value as T;
    const outer = this.#reportedOnce;
    const metrics: Record<string, number> = {};
    this.#reportedOnce = metrics;
    const outerName = this.#onceName;
    this.#onceName = name;
    this.#sayPhase(name);
    const value = await act();
    await Promise.all(this.#reports);
    this.#reportedOnce = outer;
    this.#onceName = outerName;
    await this.#journal.append({
      type: "once",
      name,
      value: value ?? null,
      metrics,
      state: this.#states.relative(this.#cluster.newestStates),
    });
    await this.#states.prune(this.#journal.state);
    return value;
  }

  /** The journal is the truth: another machine's file, or a killed runner's, may lack steps that it has. */
  #resumeMetrics(): void {
    const written = new Set(readMetrics(this.#metrics.path).map(({ step }) => step));
    for (const record of this.#journal.records) {
      if (record.type === "once") this.#tally.resumedOnce(record);
      if (record.type !== "step") continue;
      this.#tally.resumed(record);
      if (!written.has(record.step)) this.#writeMetrics(record);
    }
  }

  #writeMetrics({ step, seconds, metrics }: Pick<CommittedStep, "step" | "seconds" | "metrics">): void {
    this.#metrics.write(step, { seconds, ...metrics });
  }

  async #committed(step: CommittedStep): Promise<void> {
    this.#tally.committed(step);
    this.#nodes?.record.committed(step.step);
    this.#writeMetrics(step);
    const { tokens = 0, policyVersion } = step.metrics;
    this.#options.onEvent({
      type: "step-finished",
      atMs: Date.now(),
      step: step.step,
      seconds: step.seconds,
      metrics: { ...step.metrics },
      tokens,
      ...(policyVersion === undefined ? {} : { policyVersion }),
    });
    await this.#writePlan();
    if (this.#checkpoints.isDue(step.step) || step.step === this.#config.steps) await this.#writeCheckpoint(step);
    await this.#states.prune(this.#journal.state);
  }

  async #writeCheckpoint(step: Pick<CommittedStep, "step" | "state" | "metrics">): Promise<void> {
    if (Object.keys(step.state).length === 0 || this.#lastCheckpoint === step.step) return;
    this.#lastCheckpoint = step.step;
    const score = step.metrics[this.#config.checkpoints.bestBy];
    const path = await this.#checkpoints.write(step.step, this.#states.absolute(step.state), score);
    await this.#kept?.syncFolder("checkpoints");
    this.#options.onEvent({ type: "checkpoint", atMs: Date.now(), step: step.step, path });
  }

  async #finish(stopped: boolean): Promise<void> {
    const last = this.#journal.lastStep;
    if (last) await this.#writeCheckpoint({ step: last.step, state: last.state, metrics: this.#tally.lastMetrics });
    if (!stopped) await this.#journal.append({ type: "finished", at: new Date().toISOString() });
  }

  async #checkpointStates(name: string): Promise<Record<string, string>> {
    const notes = await this.#checkpoints.list();
    const note = notes.find((each) => basename(each.path) === name || String(each.step) === name);
    if (!note) {
      const known = notes.map((each) => basename(each.path)).join(", ") || "none";
      throw new TreadleError(
        "checkpoint.missing",
        `run '${this.#folder.runId}' has no checkpoint '${name}'; it has ${known}`,
      );
    }
    return Object.fromEntries(note.components.map((component) => [component, join(note.path, `${component}.state`)]));
  }

  #reportQueues(): void {
    for (const { channel, depth } of this.#cluster.channelDepths) {
      this.#options.onEvent({ type: "queue", atMs: Date.now(), channel, depth });
    }
  }

  #summary(): RunSummary {
    return this.#tally.summary({
      runId: this.#folder.runId,
      mode: this.#cluster.place().mode,
      seconds: (performance.now() - this.#startedMs) / 1000,
      restarts: this.#cluster.restarts,
    });
  }
}

function averageRanks(perRank: readonly Metrics[]): Record<string, number> {
  const names = new Set(perRank.flatMap((metrics) => Object.keys(metrics)));
  return Object.fromEntries(
    [...names].map((name) => {
      const values = perRank.map((metrics) => metrics[name]).filter((value) => typeof value === "number");
      return [name, values.reduce((sum, value) => sum + value, 0) / values.length];
    }),
  );
}
