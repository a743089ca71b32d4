/** How a run begins: a new one, one that is resumed, or none at all, only to see where everything would run. */
import { dirname, join, relative, resolve } from "node:path";
import { type Plan, type RuntimeConfig, TreadleError } from "@treadle/contracts";
import { RollBacks } from "@treadle/core";
import type { WorkflowContext } from "../../author/workflow.ts";
import { RunCluster } from "../cluster/run-cluster.ts";
import { findNodes } from "../nodes/find-nodes.ts";
import { AutoPlacement } from "../placement/auto-placement.ts";
import { componentKey } from "../placement/profile-store.ts";
import { applyOverrides, readConfigFile, validateConfig } from "./config.ts";
import { drive } from "./drive.ts";
import type { Journal } from "./journal.ts";
import { fetchRun } from "./kept-run.ts";
import { type LoadedWorkflow, loadOfProject, loadWorkflow } from "./load-workflow.ts";
import { openRun, type RunOptions, type RunResult, type RunStart } from "./open-run.ts";
import { RunFolder } from "./run-folder.ts";
import type { Resumer } from "./stored-run.ts";

/** Resolves the configuration and the placement; starts nothing. `keys`: of each component, as a profile of it has it. */
export async function validateWorkflow(
  options: Pick<RunOptions, "workflow" | "configFile" | "overrides" | "projectRoot" | "decide">,
): Promise<{ config: RuntimeConfig; plan: Plan; keys: ReadonlyMap<string, string> }> {
  const loaded = await loadWorkflow(options.workflow);
  const config = await resolveConfig(loaded, options.configFile, options.overrides ?? []);
  return { config, ...(await placeOnly(loaded, config, options)) };
}

export async function runWorkflow(options: RunOptions): Promise<RunResult> {
  const loaded = await loadWorkflow(options.workflow);
  const config = await resolveConfig(loaded, options.configFile, options.overrides ?? []);
  const folder = new RunFolder(options.runsRoot, newRunId(loaded.name));
  await folder.create();
  await folder.writeJson(folder.configFile, { workflow: relative(options.projectRoot, loaded.folder), config });
  return driveOn({ options, loaded, config, folder });
}

/** Goes on with a run after the last step that its journal has. `steps` may be raised by an override. */
export async function resumeRun(
  options: Omit<RunOptions, "workflow" | "configFile"> & {
    runId: string;
    checkpoint?: string | undefined;
    /** where the run is kept when its folder is not here; and how to reach, from here, what its configuration names */
    nats?: Resumer["nats"] | undefined;
  },
): Promise<RunResult> {
  const folder = new RunFolder(options.runsRoot, options.runId);
  await bringRun(folder, options);
  const stored = await folder.readConfig();
  const workflow = resolve(options.projectRoot, stored.workflow);
  const loaded = await loadWorkflow(workflow);
  const config = validateConfig(
    loaded.workflow.schema,
    applyOverrides(reachedBy(stored.config, options.nats), options.overrides ?? []),
  ) as unknown as RuntimeConfig;
  const { checkpoint } = options;
  return driveOn({ options: { ...options, workflow }, loaded, config, folder, checkpoint });
}

/** Begins again after the last commit when a death cost more than a restart of ranks brings back (RS8), within the limits of restarts. */
async function driveOn(start: RunStart): Promise<RunResult> {
  const rollBacks = new RollBacks(start.config.supervision);
  for (let from = start; ; ) {
    let committed: number | undefined;
    let goesOn = false;
    const hasCommitted = ({ lastStep }: Journal): boolean => lastStep?.step !== committed;
    const run = await openRun({
      ...from,
      rollsBack: ({ details }, journal) => {
        const rollBack = { nodeLost: details.nodeLost === true, hasCommitted: hasCommitted(journal) };
        goesOn = rollBacks.next(rollBack, performance.now());
        return goesOn;
      },
    });
    committed = run.journal.lastStep?.step;
    try {
      return await drive(run);
    } catch (error) {
      if (!goesOn) throw error;
      // A checkpoint is where the run begins only until it has gone further.
      from = hasCommitted(run.journal) ? { ...from, checkpoint: undefined } : from;
    }
  }
}

/** Rejects with `run.not-found`, and for what is kept at the servers with what `acceptRun` throws. */
async function bringRun(
  folder: RunFolder,
  {
    nats,
    ...options
  }: Pick<RunOptions, "projectRoot" | "runsRoot" | "overrides"> & { nats?: Resumer["nats"] | undefined },
): Promise<void> {
  if (await folder.exists()) return;
  const isKept = nats && (await fetchRun(folder, { ...options, nats, overrides: options.overrides ?? [] }));
  if (isKept || (await folder.isThere())) return;
  const where = `in '${dirname(folder.path)}'${nats === undefined ? "" : " or at the NATS servers"}`;
  throw new TreadleError(
    "run.not-found",
    `no run '${folder.runId}' ${where}; 'treadle runs' lists those here, 'treadle runs --nats …' those that are kept for any machine (cluster.nats.durableRuns)`,
  );
}

/** What was started on another machine may reach the servers at another address. */
function reachedBy(config: unknown, nats: Resumer["nats"] | undefined): unknown {
  const values = config as { cluster: { nats?: object } };
  if (nats === undefined || values.cluster.nats === undefined) return config;
  return { ...values, cluster: { ...values.cluster, nats: { ...values.cluster.nats, ...nats } } };
}

async function resolveConfig(
  loaded: LoadedWorkflow,
  configFile: string | undefined,
  overrides: readonly string[],
): Promise<RuntimeConfig> {
  const file = await readConfigFile(configFile ?? join(loaded.folder, "config.yaml"));
  return validateConfig(loaded.workflow.schema, applyOverrides(file, overrides)) as unknown as RuntimeConfig;
}

const placed = Symbol("placed");

/** Runs the workflow up to its first call, which is where placement is due. */
async function placeOnly(
  loaded: LoadedWorkflow,
  config: RuntimeConfig,
  { projectRoot, decide }: Pick<RunOptions, "projectRoot" | "decide">,
): Promise<{ plan: Plan; keys: ReadonlyMap<string, string> }> {
  const auto = () =>
    new AutoPlacement(
      { workflow: loaded.name, folder: loaded.folder, projectRoot, config },
      { learnt() {}, warn() {} },
    );
  const cluster = new RunCluster({
    runId: "dry-run",
    nodes: await findNodes(config, projectRoot, () => {}),
    config,
    projectRoot,
    placer: decide
      ? { plan: (facts, components) => decide(facts, config, components) }
      : config.placement.mode === "auto"
        ? auto()
        : undefined,
    runFolder: "",
    logs: "",
    stateFolder: "",
    workflowModule: loaded.module,
    onEvent: () => {},
    onSpans: () => {},
    dryRun: () => {
      throw placed;
    },
  });
  const stopHere = () => {
    cluster.place();
    throw placed;
  };
  const context: WorkflowContext<never> = {
    cluster,
    config: config as never,
    runId: "dry-run",
    projectRoot,
    warn: () => {},
    steps: stopHere,
    report: stopHere,
    once: stopHere,
    loadModule: (path) => loadOfProject(projectRoot, path),
  };
  try {
    await loaded.workflow.run(context).catch((error: unknown) => {
      if (error !== placed) throw error;
    });
    const plan = cluster.place();
    const keys = new Map(cluster.components.map((each) => [each.name, componentKey(each, projectRoot)]));
    return { plan, keys };
  } finally {
    await cluster.close();
  }
}

/** Sorts by start time, and reads well: `20260131-142530-reasoning-grpo-4f2a91c7`. */
function newRunId(workflow: string): string {
  const stamp = new Date().toISOString().replace(/[-:]/g, "").replace("T", "-").slice(0, 15);
  const name = workflow.replace(/[^A-Za-z0-9_-]/g, "-").slice(0, 60);
  return `${stamp}-${name}-${crypto.randomUUID().slice(0, 8)}`;
}
