/**
 * What a run keeps of itself as it goes on: its plan, metrics, checkpoints and states, and what its steps have come to.
 *
 * Owner of: the tally, and which plan and checkpoint were written last.
 */
import { rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { type Plan, type Profile, type RunSummary, TreadleError } from "@treadle/contracts";
import { readMetrics } from "@treadle/observe";
import { predictedPlan } from "../placement/predicted-plan.ts";
import { profilePath, readProfile } from "../placement/profile-store.ts";
import { unscoredWarning } from "./checkpoints.ts";
import type { OpenedRun } from "./open-run.ts";
import { RunTally } from "./run-tally.ts";
import type { CommittedStep } from "./step-tracker.ts";

export class RunRecords {
  readonly #run: OpenedRun;
  readonly #tally = new RunTally();
  #lastCheckpoint = 0;
  /** since a step whose state was not saved */
  #isCheckpointDue = false;
  #keptPlan: Plan | undefined;
  #hasWarned = false;

  constructor(run: OpenedRun) {
    this.#run = run;
  }

  /** Steps of this run and of the runners before it. */
  get numSteps(): number {
    return this.#tally.numSteps;
  }

  /** Says in the journal that the run begins, or goes on; then with the states that it left. */
  async begin(): Promise<void> {
    const { folder, journal, nodes, loaded, config, emit } = this.#run;
    const { runId, path } = folder;
    const at = new Date().toISOString();
    const committed = journal.lastStep?.step ?? 0;
    const isResumed = journal.records.length > 0;
    nodes?.record.committed(committed);
    if (isResumed) {
      await journal.append({ type: "resumed", at, fromStep: committed });
      await this.#restore();
    } else await journal.append({ type: "started", runId, workflow: loaded.name, at });
    emit({
      type: "run-started",
      atMs: Date.now(),
      runId,
      workflow: loaded.name,
      mode: config.placement.mode,
      steps: config.steps,
      folder: path,
      ...(isResumed ? { resumedFrom: committed } : {}),
    });
  }

  evaluated(accuracy: number, step: number | undefined): void {
    const { journal, emit } = this.#run;
    this.#tally.evaluated(accuracy);
    emit({ type: "evaluation", atMs: Date.now(), step: step ?? journal.lastStep?.step ?? 0, accuracy });
  }

  async committed(step: CommittedStep): Promise<void> {
    const { nodes, emit, checkpoints, config, states, carriedFiles, journal } = this.#run;
    this.#tally.committed(step);
    nodes?.record.committed(step.step);
    this.#writeMetrics(step);
    const { tokens = 0, policyVersion } = step.metrics;
    emit({
      type: "step-finished",
      atMs: Date.now(),
      step: step.step,
      seconds: step.seconds,
      metrics: { ...step.metrics },
      tokens,
      ...(policyVersion === undefined ? {} : { policyVersion }),
    });
    await this.writePlan();
    this.#isCheckpointDue ||= checkpoints.isDue(step.step) || step.step === config.steps;
    if (this.#isCheckpointDue && Object.keys(step.state).length > 0) await this.#writeCheckpoint(step);
    await states.prune(journal.state);
    await carriedFiles.keepOnly(journal.lastStep?.waiting);
  }

  /** The plan may change between steps. */
  async writePlan(): Promise<void> {
    const { cluster, folder, kept } = this.#run;
    const plan = cluster.place();
    if (plan === this.#keptPlan) return;
    this.#keptPlan = plan;
    await folder.writeJson(folder.planFile, plan);
    await kept?.keep(folder.planFile);
    await this.#writePrediction(plan);
  }

  async #writePrediction(plan: Plan): Promise<void> {
    const { cluster, folder, loaded, config, options } = this.#run;
    const { projectRoot } = options;
    const found = keptProfile(profilePath(projectRoot, loaded.folder, config.placement.auto.profile), loaded.name);
    const facts = { facts: cluster.placementFacts, components: cluster.components, projectRoot };
    const predicted = found && predictedPlan(found, plan, facts);
    const { predictionFile, graphFile } = folder;
    // What was said of a plan before is not true of this one.
    if (!predicted) {
      await Promise.all([predictionFile, graphFile].map((file) => rm(file, { force: true })));
      return;
    }
    await folder.writeJson(predictionFile, predicted.prediction);
    await folder.writeJson(graphFile, predicted.graph);
  }

  /** The workflow has returned: `stopped` before its last step, it may be resumed. */
  async finish(stopped: boolean): Promise<RunSummary> {
    const { journal, folder, cluster, startedMs } = this.#run;
    const last = journal.lastStep;
    if (last) await this.#writeCheckpoint({ step: last.step, state: last.state, metrics: this.#tally.lastMetrics });
    if (!stopped) await journal.append({ type: "finished", at: new Date().toISOString() });
    return this.#tally.summary({
      runId: folder.runId,
      mode: cluster.place().mode,
      seconds: (performance.now() - startedMs) / 1000,
      restarts: cluster.restarts,
    });
  }

  async #restore(): Promise<void> {
    const { cluster, states, carriedFiles, journal, checkpoint } = this.#run;
    const from = checkpoint ? await this.#statesOf(checkpoint) : states.absolute(journal.state);
    await states.restored(from);
    cluster.restoreStates(from);
    await states.forgetUncommitted(journal.state);
    const { waiting } = journal.lastStep ?? {};
    // Tokens of newer weights than those of an older checkpoint are no part of what goes on from there.
    if (waiting && !checkpoint) await carriedFiles.restore(waiting);
    await carriedFiles.keepOnly(waiting);
    this.#resumeMetrics();
  }

  async #statesOf(checkpoint: string): Promise<Record<string, string>> {
    const { checkpoints, folder } = this.#run;
    const notes = await checkpoints.list();
    const note = notes.find((each) => basename(each.path) === checkpoint || String(each.step) === checkpoint);
    if (!note) {
      const known = notes.map((each) => basename(each.path)).join(", ") || "none";
      throw new TreadleError(
        "checkpoint.missing",
        `run '${folder.runId}' has no checkpoint '${checkpoint}'; it has ${known}`,
      );
    }
    return Object.fromEntries(note.components.map((component) => [component, join(note.path, component)]));
  }

  /** The journal is the truth: another machine's file, or a killed runner's, may lack steps that it has. */
  #resumeMetrics(): void {
    const { metrics, journal } = this.#run;
    const written = new Set(readMetrics(metrics.path).map(({ step }) => step));
    for (const record of journal.records) {
      if (record.type === "once") this.#tally.resumedOnce(record);
      if (record.type !== "step") continue;
      this.#tally.resumed(record);
      if (!written.has(record.step)) this.#writeMetrics(record);
    }
  }

  #writeMetrics({ step, seconds, metrics }: Pick<CommittedStep, "step" | "seconds" | "metrics">): void {
    this.#run.metrics.write(step, { seconds, ...metrics });
  }

  async #writeCheckpoint(step: Pick<CommittedStep, "step" | "state" | "metrics">): Promise<void> {
    const { checkpoints, config, states, kept, emit } = this.#run;
    if (Object.keys(step.state).length === 0 || this.#lastCheckpoint === step.step) return;
    this.#lastCheckpoint = step.step;
    this.#isCheckpointDue = false;
    const score = step.metrics[config.checkpoints.bestBy];
    const { path, removed } = await checkpoints.write(step.step, states.absolute(step.state), score);
    await kept?.syncFolder("checkpoints", path);
    emit({ type: "checkpoint", atMs: Date.now(), step: step.step, path });
    const warning = this.#hasWarned ? undefined : unscoredWarning(removed, config.checkpoints, step.metrics);
    if (warning === undefined) return;
    this.#hasWarned = true;
    emit({ type: "log", atMs: Date.now(), worker: "runner", line: warning, level: "warn" });
  }
}

function keptProfile(path: string, workflow: string): Profile | undefined {
  try {
    return readProfile(path, workflow);
  } catch {
    return undefined;
  }
}
