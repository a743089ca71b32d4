/**
 * Runs the workflow of an opened run to its end, and closes the run.
 *
 * J1: holds through the journal: a resumed run begins after the last committed step, with the states that
 * were committed with it. S1: what ends a run is its first failure, whoever noticed it first; unless another runner has
 * taken the run.
 */
import { savesInBackground, TreadleError, toErrorRecord } from "@treadle/contracts";
import type { WorkflowContext } from "../../author/workflow.ts";
import { Elasticity } from "../placement/elasticity.ts";
import { loadOfProject } from "./load-workflow.ts";
import type { OpenedRun, RunResult } from "./open-run.ts";
import { Reports } from "./reports.ts";
import { RunRecords } from "./run-records.ts";
import { StepTracker } from "./step-tracker.ts";

const queuesIntervalMs = 1000;

/** Rejects with what ended the run, which has been told to whoever watches. */
export async function drive(run: OpenedRun): Promise<RunResult> {
  // The caller's signals may outlive the run.
  const over = new AbortController();
  const queues = setInterval(() => reportQueues(run), queuesIntervalMs);
  try {
    return await execute(run, over.signal);
  } finally {
    over.abort();
    clearInterval(queues);
    await run.close();
  }
}

async function execute(run: OpenedRun, over: AbortSignal): Promise<RunResult> {
  const { cluster, config, stop, nodes, trace, emit, taken } = run;
  const records = new RunRecords(run);
  const tracker = openTracker(run, records);
  cluster.onCall((handle) => tracker.track(handle));
  stop.addEventListener("abort", () => tracker.stop(), { signal: over });
  if (stop.aborted) tracker.stop();
  const failed = failureOf(run, over);
  try {
    await records.begin();
    await Promise.race([runWorkflow(run, records, tracker), failed]);
    const stopped = stop.aborted && records.numSteps < config.steps;
    const summary = await records.finish(stopped);
    run.options.onPlaced?.(cluster.place(), cluster.placementFacts);
    await run.folder.writeJson(run.folder.summaryFile, summary);
    trace?.stopReporting();
    await nodes?.record.ended(stopped ? "stopped" : "finished");
    emit({ type: "run-finished", atMs: Date.now(), summary });
    return { summary, stopped };
  } catch (error) {
    await run.lookIfTaken();
    // S1; but a failure that a runner which took the run causes is not this run's.
    const first = taken.aborted ? taken.reason : (cluster.failure ?? error);
    if (first instanceof TreadleError && first.code === "run.rolled-back" && run.rollsBack?.(first, run.journal)) {
      run.warn(first.message);
      throw first;
    }
    trace?.stopReporting();
    await nodes?.record.ended("failed", toErrorRecord(first).message);
    emit({ type: "run-failed", atMs: Date.now(), error: toErrorRecord(first) });
    throw first;
  }
}

/** Rejects when the run fails, is taken, or is ended at once. */
function failureOf({ cluster, options, taken }: OpenedRun, over: AbortSignal): Promise<never> {
  const failed = new Promise<never>((_, reject) => {
    cluster.onFailure(reject);
    const ended = new TreadleError("run.stopped", "the run was ended by the user");
    options.kill?.addEventListener("abort", () => reject(ended), { signal: over });
  });
  failed.catch(() => {});
  options.pool?.onLost((error) => cluster.abort(error));
  taken.addEventListener("abort", () => cluster.abort(taken.reason), { signal: over });
  if (taken.aborted) cluster.abort(taken.reason);
  return failed;
}

function openTracker(run: OpenedRun, records: RunRecords): StepTracker {
  const { cluster, journal, config, states, auto, emit, options, carriedFiles } = run;
  // What decides where everything runs decides how large ranks are, too.
  const sized = auto || options.decide ? undefined : cluster.sized;
  const elasticity = new Elasticity({
    revision: () => cluster.nodesRevision,
    adapt: () => {
      const planned = cluster.adapt();
      const isResized = planned !== undefined && cluster.isElastic;
      return auto && isResized ? auto.plan(cluster.placementFacts, cluster.components) : planned;
    },
    adopt: (planned) => cluster.adopt(planned),
    warn: run.warn,
  });
  cluster.loop.on("saved", ({ path }) => states.saved(path));
  return new StepTracker({
    journal,
    totalSteps: config.steps,
    carriedFiles,
    loop: cluster.loop,
    states: (each) => states.relative(each),
    enter: (step) => {
      cluster.step = step;
    },
    onStarted: (step) => emit({ type: "step-started", atMs: Date.now(), step }),
    warn: run.warn,
    onCommitted: async (step) => {
      auto?.committed(step.step, step.seconds);
      await sized?.committed(step.step, step.seconds, cluster);
      await records.committed(step);
    },
    ahead: savesInBackground(config.checkpoints)
      ? {
          maxOpen: 2 * config.checkpoints.stateEverySteps + config.flow.maxStaleness + 1,
          saveStates: () => cluster.saveStates(),
        }
      : undefined,
    between: () => {
      elasticity.placed();
      return elasticity.between() ?? auto?.between(cluster) ?? sized?.between(cluster);
    },
  });
}

async function runWorkflow(run: OpenedRun, records: RunRecords, tracker: StepTracker): Promise<void> {
  const reports = new Reports(run, records, tracker);
  const context: WorkflowContext<never> = {
    cluster: run.cluster,
    config: run.config as never,
    runId: run.folder.runId,
    projectRoot: run.options.projectRoot,
    warn: run.warn,
    steps: (dataset) => tracker.steps(dataset),
    report: (metrics) => reports.report(metrics),
    once: (name, act) => reports.once(name, act),
    loadModule: (path) => loadOfProject(run.options.projectRoot, path),
  };
  await run.loaded.workflow.run(context);
  await reports.settled();
  await tracker.drained();
  if (run.auto?.spentInVain) run.warn(run.auto.spentInVain);
  await records.writePlan();
}

function reportQueues({ cluster, emit }: OpenedRun): void {
  for (const { channel, depth } of cluster.channelDepths) emit({ type: "queue", atMs: Date.now(), channel, depth });
}
