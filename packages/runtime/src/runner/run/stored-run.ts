/**
 * What resumes a run: its workflow and configuration, as its folder has them, and as they are kept at the NATS servers, where
 * every client of the account may have put others.
 *
 * SR1 what is fetched acts only when the key of a trusted runner has signed it for this run. Without keys only servers on
 *    loopback are asked.
 * SR2 it names a workflow of this project, none that is reached by a link and none in a folder of runs, where fetched files are.
 * SR3 it runs on the nodes at the servers that it was fetched from, which are reached as whoever resumes it says, and never on
 *    the runner's own machine.
 * SR4 it starts workers as any node allows unasked: with other interpreters and variables, and files and addresses of this
 *    machine, only those that whoever resumes it names as well (`--set`).
 */
import { realpath } from "node:fs/promises";
import { relative, resolve, sep } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { NatsConfig, RuntimeConfig, TreadleError, WorkerPermissions } from "@treadle/contracts";
import { RunProof, Trust } from "@treadle/transport";
import { z } from "zod";
import { checkWorkerStart } from "../../node/worker-permissions.ts";
import { applyOverrides, settingsOf, validateConfig, valueAt } from "./config.ts";
import type { RunFolder } from "./run-folder.ts";

const StoredRun = z.object({ workflow: z.string(), config: z.record(z.string(), z.unknown()) });
type StoredRun = z.infer<typeof StoredRun>;

const KeptRunFile = StoredRun.extend({ proof: RunProof.optional() });

/** What is looked at before the workflow, whose schema has the rest, is loaded. */
const Looked = z.looseObject(RuntimeConfig.shape);
type Looked = z.infer<typeof Looked>;

const under = (section: string, keys: string): string[] => keys.split(" ").map((key) => `${section}.${key}`);

/** SR4, of each setting that every workflow has. One in none of these lists is as whoever resumes the run says. */
export const keptSettings = {
  /** they say how the run goes, and name nothing of a machine */
  free: [
    ...["seed", "steps", "batch", "trace"],
    ...under("cluster", "devices memoryPerDeviceMiB nodeGroups minNodes nodeWaitMs rejoinMs placeWaitMs exclusive"),
    ...under("placement", "mode components elastic"),
    ...under("placement.wishes", "modes useAllDevices freeDevices maxRanks together apart"),
    ...under("placement.auto", "warmupSteps measuredSteps measuredSeconds trialRounds trialTolerance"),
    ...under("placement.auto", "driftThreshold driftWindow"),
    ...under("flow", "granularity maxStaleness capacity inlineLimitKiB"),
    ...under("supervision", "maxRestarts restartWindowMs heartbeatTimeoutMs startTimeoutMs callTimeoutMs"),
    ...under("supervision", "peerTimeoutMs stallMs lockTimeoutMs stopGraceMs"),
    ...under("checkpoints", "stateEverySteps inBackground everySteps keepLast keepBest bestBy"),
    ...under("pool", "priority weight maxSlowdown memoryPerDeviceMiB share"),
    ...under("observe", "record recordMaxMiB"),
  ],
  /** addresses and certificates of the runner's machine, which a trusted runner may name */
  signed: [
    ...under("cluster.links", "bind advertise tls.ca tls.cert tls.key"),
    ...under("observe.metrics", "address tls.cert tls.key tls.ca"),
    ...under("observe", "otlp.endpoint"),
  ],
  own: ["placement.auto.profile"],
  /** they have rules of their own, here and in SR3 */
  examined: ["cluster.groups", "cluster.nats", "observe.trackers"],
};

export type Resumer = {
  /** how it reaches the servers */
  readonly nats: z.input<typeof NatsConfig>;
  readonly projectRoot: string;
  readonly runsRoot: string;
  /** what it says itself, as `key.path=value` */
  readonly overrides: readonly string[];
};

/** What there is to resume, of what the servers have. Throws what SR1 to SR4 forbid. */
export async function acceptRun(runId: string, text: string, resumer: Resumer): Promise<StoredRun> {
  const { proof, ...stored } = parse(runId, text);
  const trust = Trust.of(validateConfig(NatsConfig, resumer.nats));
  trust?.checkRun(runId, stored, proof);
  await checkWorkflow(runId, stored.workflow, resumer);
  const config = reachedAs(runId, stored.config, resumer.nats);
  checkSettings(runId, config, resumer.overrides, trust !== undefined);
  return { ...stored, config };
}

/** Signed, where keys are configured, so that other machines may resume it. */
export async function signStoredRun(nats: NatsConfig, folder: RunFolder, stored: StoredRun): Promise<void> {
  const { workflow, config } = stored;
  const proof = Trust.of(nats)?.proveRun(folder.runId, { workflow, config });
  await folder.writeJson(folder.configFile, { workflow, config, ...(proof === undefined ? {} : { proof }) });
}

function parse(runId: string, text: string): z.infer<typeof KeptRunFile> {
  try {
    return KeptRunFile.parse(JSON.parse(text));
  } catch (cause) {
    throw new TreadleError(
      "config.unreadable",
      `what the NATS servers have of run '${runId}' is no configuration of a run; forget it with 'treadle runs --forget ${runId}'`,
      { cause },
    );
  }
}

/** SR2. */
async function checkWorkflow(runId: string, workflow: string, { projectRoot, runsRoot }: Resumer): Promise<void> {
  const [root, runs, path] = (await Promise.all(
    [projectRoot, runsRoot, resolve(projectRoot, workflow)].map((each) => realpath(each).catch(() => resolve(each))),
  )) as [string, string, string];
  if (isWithin(root, path) && (!isWithin(runs, path) || isWithin(runs, root))) return;
  throw new TreadleError(
    "workflow.invalid",
    `run '${runId}', as the NATS servers have it, is of workflow '${workflow}'; what comes from there may name only folders below '${root}' that hold no runs; resume it in a checkout that has the workflow, or forget it with 'treadle runs --forget ${runId}'`,
  );
}

function isWithin(folder: string, path: string): boolean {
  return relative(folder, path).split(sep)[0] !== "..";
}

/** SR3. What is kept may say how patient a runner is, and nothing of where and as whom it connects. */
function reachedAs(
  runId: string,
  config: StoredRun["config"],
  own: z.input<typeof NatsConfig>,
): StoredRun["config"] & { cluster: object } {
  const { cluster } = validateConfig(z.looseObject({ cluster: z.looseObject({ nats: z.unknown().optional() }) }), {
    cluster: {},
    ...config,
  });
  if (cluster.nats === undefined || cluster.nats === null) {
    throw new TreadleError(
      "config.invalid",
      `run '${runId}', as the NATS servers have it, has no 'cluster.nats', and would run on this machine, while only runs on node agents are resumed from there; forget it with 'treadle runs --forget ${runId}'`,
    );
  }
  const { leaseMs, outageMs, replicas } = validateConfig(NatsConfig, cluster.nats);
  return { ...config, cluster: { ...cluster, nats: { leaseMs, outageMs, replicas, ...own, durableRuns: true } } };
}

/** SR4. */
function checkSettings(
  runId: string,
  config: StoredRun["config"],
  overrides: readonly string[],
  isSigned: boolean,
): void {
  const effective = validateConfig(Looked, applyOverrides(config, overrides));
  const said = Looked.safeParse(applyOverrides({}, overrides));
  const own = said.success ? said.data : Looked.parse({});
  for (const name of Object.keys(effective.cluster.groups)) checkGroup(runId, name, effective, own);
  const check = (path: string, of: (from: Looked) => unknown): void => {
    if (isDeepStrictEqual(of(effective), of(own))) return;
    throw new TreadleError(
      "config.invalid",
      `run '${runId}', as the NATS servers have it, sets '${path}', which may name files or addresses of the runner's machine; what is right on this one say with --set ${path}=…`,
    );
  };
  const mayBeKept = new Set([...keptSettings.free, ...(isSigned ? keptSettings.signed : [])]);
  const isExamined = (path: string): boolean =>
    keptSettings.examined.some((each) => path === each || path.startsWith(`${each}.`));
  for (const path of settingsOf(RuntimeConfig))
    if (!mayBeKept.has(path) && !isExamined(path)) check(path, (from) => valueAt(from, path.split(".")));
  check("observe.trackers", ({ observe: { trackers } }) => (isSigned ? trackers.filter(namesFiles) : trackers));
}

/** Of the machine that sends to it. */
const namesFiles = (tracker: Looked["observe"]["trackers"][number]): boolean =>
  ["path", "folder", "python", "module"].some((key) => Object.hasOwn(tracker, key));

function checkGroup(runId: string, name: string, effective: Looked, own: Looked): void {
  const { env, interpreter } = effective.cluster.groups[name] as Looked["cluster"]["groups"][string];
  const mine = Object.hasOwn(own.cluster.groups, name) ? own.cluster.groups[name] : undefined;
  const start = {
    env: Object.fromEntries(Object.entries(env).filter(([key, value]) => mine?.env[key] !== value)),
    interpreter: isDeepStrictEqual(interpreter, mine?.interpreter) ? undefined : interpreter,
  };
  try {
    checkWorkerStart(start, WorkerPermissions.parse({}), "any");
  } catch (cause) {
    throw new TreadleError(
      "node.forbidden",
      `run '${runId}', as the NATS servers have it, says in 'cluster.groups.${name}' how workers start, which no node allows unasked (${Object.keys(start.env).join(", ") || (interpreter?.command as string)}); if you want that, say it yourself with --set cluster.groups.${name}.env.NAME=… or --set 'cluster.groups.${name}.interpreter={command: …, flags: […]}'`,
      { cause },
    );
  }
}
