/**
 * Opens a run: its folder and journal, its nodes, its cluster, and whoever watches it. Nothing of the workflow has run yet.
 *
 * Owner of: everything that a run holds until it is closed, the last opened first.
 */
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import {
  checkPlatform,
  describePoolWait,
  type Plan,
  type RunEvent,
  type RunSummary,
  type RuntimeConfig,
  type TreadleError,
} from "@treadle/contracts";
import { EventWriter, MetricsWriter, Trackers } from "@treadle/observe";
import { loadModule } from "../../author/module-loader.ts";
import { RunCluster } from "../cluster/run-cluster.ts";
import { connectNodes } from "../nodes/find-nodes.ts";
import type { Nodes } from "../nodes/nodes.ts";
import type { PoolClient } from "../nodes/pool-client.ts";
import { AutoPlacement, type Learnt } from "../placement/auto-placement.ts";
import type { Component } from "../placement/component.ts";
import type { PlacementFacts, PlannedChange } from "../placement/placement-facts.ts";
import { predictorFolder } from "../placement/profile-store.ts";
import { CarriedFiles } from "./carried-files.ts";
import { Checkpoints } from "./checkpoints.ts";
import { Journal } from "./journal.ts";
import { type KeptRun, openKeptRun } from "./kept-run.ts";
import type { LoadedWorkflow } from "./load-workflow.ts";
import { ShownFiles } from "./run-files.ts";
import type { RunFolder } from "./run-folder.ts";
import { openRunObservation } from "./run-observation.ts";
import { RunTrace } from "./run-trace.ts";
import { StateFiles } from "./state-files.ts";

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
  /** shares the devices of this machine with other runs */
  readonly pool?: PoolClient | undefined;
  /** decides where everything runs, instead of the mode */
  readonly decide?:
    | ((facts: PlacementFacts, config: RuntimeConfig, components: readonly Component[]) => PlannedChange)
    | undefined;
  /** told the plan under which the run ended well, and what it is made of */
  readonly onPlaced?: ((plan: Plan, facts: PlacementFacts) => void) | undefined;
  /** with `placement.mode: auto`: told after each step what is known by now */
  readonly onLearnt?: ((learnt: Learnt) => void) | undefined;
};

export type RunResult = { readonly summary: RunSummary; readonly stopped: boolean };

/** What a run begins with. */
export type RunStart = {
  readonly options: RunOptions;
  readonly loaded: LoadedWorkflow;
  readonly config: RuntimeConfig;
  readonly folder: RunFolder;
  /** of this run, by name or step: it goes on from there */
  readonly checkpoint?: string | undefined;
  /** asked once of a death that costs what no saved state has: whether the run begins again, instead of ending */
  readonly rollsBack?: (death: TreadleError, journal: Journal) => boolean;
};

export type OpenedRun = RunStart & {
  readonly startedMs: number;
  readonly journal: Journal;
  readonly metrics: MetricsWriter;
  readonly states: StateFiles;
  readonly carriedFiles: CarriedFiles;
  readonly checkpoints: Checkpoints;
  /** the run as it is kept for other machines */
  readonly kept: KeptRun | undefined;
  readonly nodes: Nodes | undefined;
  readonly auto: AutoPlacement | undefined;
  readonly trace: RunTrace | undefined;
  readonly cluster: RunCluster;
  /** tells everybody who watches */
  readonly emit: (event: RunEvent) => void;
  /** one more who hears of events, after the others */
  readonly watch: (watcher: (event: RunEvent) => void) => void;
  readonly warn: (line: string) => void;
  /** aborted when no further step is wanted */
  readonly stop: AbortSignal;
  /** aborted, with the reason, when another runner has taken the run */
  readonly taken: AbortSignal;
  /** Aborts `taken` at once where the run is another runner's by now. */
  readonly lookIfTaken: () => Promise<void>;
  /** Ends what still runs, and frees everything. */
  readonly close: () => Promise<void>;
};

export async function openRun(start: RunStart): Promise<OpenedRun> {
  checkPlatform(process);
  const startedMs = performance.now();
  const held: (() => unknown)[] = [];
  const close = () => closeAll(held.splice(0).reverse());
  try {
    return { ...(await openAll(start, held)), startedMs, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** `held`: how to close what is open by now. */
async function openAll(start: RunStart, held: (() => unknown)[]): Promise<Omit<OpenedRun, "startedMs" | "close">> {
  const { options, loaded, config, folder } = start;
  const { projectRoot, decide, measureAnew } = options;
  const { runId } = folder;
  const taken = new AbortController();
  const lost = (error: Error) => taken.abort(error);
  const watchers = [options.onEvent];
  const emit = (event: RunEvent) => {
    for (const watch of watchers) watch(event);
  };
  const warn = (line: string) => emit({ type: "log", atMs: Date.now(), worker: "runner", line, level: "warn" });

  const lock = await folder.acquire(lost);
  held.push(() => lock.release().catch(() => {}));
  await folder.create();
  const nodes = await connectNodes(config, projectRoot, warn, runId);
  held.push(() => nodes?.close());
  const { nats } = config.cluster;
  nodes?.onTaken(lost);
  if (nats?.durableRuns) await nodes?.claim(runId);
  const kept = nats?.durableRuns ? await openKeptRun(nats, folder, warn) : undefined;
  const journal = await openJournal(kept, folder);
  held.push(() => journal.close());
  const events = new EventWriter(folder.eventsFile);
  held.push(() => events.close());
  watchers.unshift((event) => events.write(event));
  const metrics = new MetricsWriter(folder.metricsFile);
  held.push(() => metrics.close());
  const observation = await openRunObservation(config.observe, { runId, onNotice: warn });
  held.push(() => observation?.close());
  if (observation) watchers.unshift((event) => observation.event(event));
  const { trackers: configs } = config.observe;
  const trackers = new Trackers(configs, {
    ...{ runId, folder: folder.path, projectRoot, steps: config.steps, warn },
    loadModule: (path) => loadModule(pathToFileURL(resolve(projectRoot, path)).href),
  });
  held.push(() => trackers.close());
  watchers.unshift((event) => trackers.event(event));
  const trace = config.trace ? new RunTrace(folder.traceFile, emit) : undefined;
  held.push(() => trace?.close());

  await nodes?.find();
  options.pool?.onNotice(warn);
  options.pool?.onWaits((wait, forMs) => {
    const on = wait === null ? "other runs" : describePoolWait(wait);
    emit({ type: "waiting", atMs: Date.now(), who: "the run", on, seconds: forMs / 1000 });
  });
  watchers.push((event) => {
    if (event.type === "step-finished") options.pool?.progress(Math.min(1, event.step / config.steps));
  });
  await options.pool?.join(config, runId, options.stop);
  const auto =
    config.placement.mode === "auto" && decide === undefined
      ? new AutoPlacement(
          { workflow: loaded.name, folder: loaded.folder, projectRoot, config, measureAnew },
          { learnt: (learnt) => options.onLearnt?.(learnt), warn },
        )
      : undefined;
  const asked = new AbortController();
  const states = new StateFiles(folder);
  const cluster = new RunCluster({
    runId,
    nodes,
    onStopAsked: () => asked.abort(),
    shown: new ShownFiles(folder.path),
    pool: options.pool,
    config,
    projectRoot,
    placer: decide ? { plan: (facts, components) => decide(facts, config, components) } : auto,
    runFolder: folder.path,
    logs: folder.logs,
    stateFolder: folder.state,
    committed: journal.lastStep?.step,
    onState: (path, manifest) => states.completed(path, manifest),
    predictorFolder: predictorFolder(projectRoot, loaded.folder),
    workflowModule: loaded.module,
    onEvent: emit,
    telemetry: observation?.telemetry,
    onSpans: (batch) => {
      trace?.add(batch);
      observation?.spans(batch);
    },
  });
  held.push(() => cluster.close());
  await observation?.serve(() => cluster.traffic);
  return {
    ...start,
    journal,
    metrics,
    states,
    carriedFiles: new CarriedFiles(folder),
    checkpoints: new Checkpoints(folder.checkpoints, config.checkpoints),
    kept,
    nodes,
    auto,
    trace,
    cluster,
    emit,
    watch: (watcher) => watchers.push(watcher),
    warn,
    stop: AbortSignal.any([asked.signal, ...(options.stop ? [options.stop] : [])]),
    taken: taken.signal,
    lookIfTaken: () => lock.look(),
  };
}

async function openJournal(kept: KeptRun | undefined, folder: RunFolder): Promise<Journal> {
  if (kept === undefined) return Journal.open(folder.journalFile);
  try {
    return new Journal(kept, `of run '${folder.runId}'`);
  } catch (error) {
    await kept.close();
    throw error;
  }
}

/** Each of them, whatever becomes of the others; rejects with the first failure. */
async function closeAll(closings: readonly (() => unknown)[]): Promise<void> {
  const failures: unknown[] = [];
  for (const close of closings) {
    try {
      await close();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}
