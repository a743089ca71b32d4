import { NatsConfig, type RunEvent, TreadleError } from "@treadle/contracts";
import {
  markThisProcess,
  openPoolLink,
  PoolClient,
  RunFolder,
  type RunResult,
  resumeRun,
  runWorkflow,
  validateConfig,
} from "@treadle/runtime/runner";
import { openNatsControlPlane } from "@treadle/transport";
import { Command, Option } from "commander";
import { openParentLink } from "../multiplex/parent-link.ts";
import { startDashboardProcess } from "../view/dashboard-process.ts";
import { startView } from "../view/start-view.ts";
import { renderSummary } from "../view/summary.ts";
import { type NatsFlags, natsValues, withNatsFlags } from "./control-plane.ts";
import { engineKindOf } from "./engine-kind.ts";
import { interruptible } from "./interruptible.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";
import { clusterOverrides, withOverrides } from "./settings.ts";

type RunFlags = Partial<NatsFlags> & {
  readonly set: readonly string[];
  readonly config?: string;
  readonly runs?: string;
  readonly json?: boolean;
  readonly plain?: boolean;
  readonly checkpoint?: string;
  readonly dashboard?: boolean;
  readonly pool?: string | true;
  readonly pooled?: boolean;
};

function withRunFlags(command: Command): Command {
  return command
    .option("--runs <folder>", "where runs keep their folders (default: runs/ of the project)")
    .option(
      "--pool [name]",
      "shares devices with other runs, in that pool (default: this machine's) at --nats or --cluster",
    )
    .option("--dashboard", "serves the live page of 'treadle dashboard' while it runs")
    .option("--plain", "plain lines instead of the live view")
    .option("--json", "prints one summary object on standard output and nothing else there");
}

export function runCommand(): Command {
  return withNatsFlags(withRunFlags(withOverrides(new Command("run"))), { needed: false })
    .description("runs a workflow")
    .argument("<workflow>", "folder of the workflow, as workflows/reasoning-grpo")
    .option("--config <file>", "configuration file (default: config.yaml of the workflow)")
    .addOption(new Option("--pooled", "started by 'treadle multiplex', which it tells everything").hideHelp())
    .action(async (workflow: string, flags: RunFlags, command: Command) => {
      if (flags.pool === undefined && command.getOptionValueSource("nats") === "cli" && flags.cluster === undefined)
        throw new TreadleError(
          "problem.invalid",
          "'--nats' says where the pool of '--pool' is; node agents are found by '--set cluster.nats.url=…'",
        );
      const cluster = flags.pool === undefined ? await clusterOverrides(flags.cluster) : [];
      const set = [...cluster, ...flags.set]; // what is said besides counts for more
      return (flags.pooled ? executePooled : execute)({ ...flags, set }, (common) =>
        runWorkflow({ ...common, workflow, configFile: flags.config }),
      );
    });
}

export function resumeCommand(): Command {
  return withNatsFlags(withRunFlags(withOverrides(new Command("resume"))), { needed: false })
    .description(
      "continues a run after its last finished step; with --nats also a run of another machine that was kept there",
    )
    .argument("<run>", "id of the run, as 'treadle runs' lists them")
    .option("--checkpoint <name>", "states of a checkpoint instead of the last step's, as step-000040")
    .action((runId: string, flags: RunFlags) => {
      const { nats: address, checkpoint } = flags;
      const nats = address === undefined ? undefined : natsValues({ ...flags, nats: address });
      return execute(flags, (common) => resumeRun({ ...common, runId, checkpoint, nats }));
    });
}

type Common = {
  readonly overrides: readonly string[];
  readonly runsRoot: string;
  readonly projectRoot: string;
  readonly onEvent: (event: RunEvent) => void;
  readonly stop: AbortSignal;
  readonly kill: AbortSignal;
  readonly pool?: PoolClient;
};

/** A stop leaves a checkpoint, and the exit code 130. */
async function execute(flags: RunFlags, start: (common: Common) => Promise<RunResult>): Promise<void> {
  const projectRoot = findProjectRoot();
  const joined = await openPoolFor(flags);
  const view = startView({ json: flags.json === true, plain: flags.plain === true });
  const runsRoot = flags.runs ?? defaultRunsRoot(projectRoot);
  const dashboard = flags.dashboard ? startDashboardProcess(runsRoot, view.notice) : undefined;
  try {
    const { summary, stopped } = await interruptible(
      (signals) =>
        start({
          overrides: flags.set,
          runsRoot,
          projectRoot,
          onEvent: view.onEvent,
          ...(joined ? { pool: joined.pool } : {}),
          ...signals,
        }),
      () => view.notice("stopping after this step; press Ctrl-C again to end at once"),
    );
    view.close();
    if (flags.json) process.stdout.write(`${JSON.stringify(summary)}\n`);
    else {
      const { config } = await new RunFolder(runsRoot, summary.runId).readConfig();
      const isExportable = !["embedded", "emulated"].includes(engineKindOf(config));
      const options = { colour: process.stdout.isTTY === true, runs: flags.runs, isExportable };
      process.stdout.write(`${renderSummary(view.state(), options)}\n`);
    }
    if (stopped) process.exitCode = 130;
  } finally {
    view.close();
    dashboard?.close();
    await joined?.close();
  }
}

/** Rejects where no such pool is there, before anything begins. */
async function openPoolFor(flags: RunFlags): Promise<{ pool: PoolClient; close: () => Promise<void> } | undefined> {
  if (flags.pool === undefined) return undefined;
  if (flags.nats === undefined)
    throw new TreadleError(
      "config.invalid",
      "'--pool' finds the pool at a NATS server; say where with --cluster <folder> or --nats <address> (TREADLE_CLUSTER, TREADLE_NATS_URL)",
    );
  const nats = validateConfig(NatsConfig, natsValues({ ...flags, nats: flags.nats }));
  const marked = markThisProcess();
  const plane = await openNatsControlPlane({ nats, name: "treadle run in a pool", keepsRecords: false });
  try {
    const link = openPoolLink(plane, marked, flags.pool === true ? undefined : flags.pool);
    const pool = new PoolClient(link);
    const close = async () => {
      pool.close();
      await link.close();
    };
    return { pool, close };
  } catch (error) {
    await plane.close();
    throw error;
  }
}

/** As `execute`, for the process that started this one. */
async function executePooled(flags: RunFlags, start: (common: Common) => Promise<RunResult>): Promise<void> {
  const projectRoot = findProjectRoot();
  const parent = openParentLink();
  const pool = new PoolClient(parent.pool);
  const runsRoot = flags.runs ?? defaultRunsRoot(projectRoot);
  try {
    const { stopped } = await interruptible((signals) =>
      start({ overrides: flags.set, runsRoot, projectRoot, onEvent: parent.sendEvent, pool, ...signals }),
    );
    if (stopped) process.exitCode = 130;
  } finally {
    pool.close();
    await parent.close();
  }
}
