/** `treadle plan --beside`: what a workflow loses and gains beside others that have the same devices. */
import { existsSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { type DeviceSpec, type Plan, PoolConfig, type Profile, TreadleError } from "@treadle/contracts";
import { planFromProfile } from "@treadle/planner";
import { profilePath, RunFolder, readProfile, validateWorkflow } from "@treadle/runtime/runner";
import { type Beside, type PlannedRun, simulate, simulateBeside } from "@treadle/simulation";
import { z } from "zod";
import { describeMismatch } from "../view/profile-match.ts";
import { singleLine } from "../view/text.ts";
import { readPlanFile } from "./plan-file.ts";

/** `on`: its plan on some of its devices; undefined where none fits, or where it runs and is not planned again. */
export type PlannedBeside = PlannedRun & { readonly on: (devices: readonly DeviceSpec[]) => Plan | undefined };

/** `partsSeconds`: of the same steps, where each run has its part of the devices for itself. */
export type ComparedBeside = Beside & { readonly turnSeconds: number; readonly partsSeconds: number | undefined };

const StoredPool = z.looseObject({ pool: PoolConfig.prefault({}) });
/** As by default of `treadle multiplex`, of runs that neither die nor fail to yield. */
const besideLimits = {
  patienceMs: 60_000,
  yieldMs: Number.MAX_SAFE_INTEGER,
  beatLimitMs: Number.MAX_SAFE_INTEGER,
};

/** `others`: folders of workflows, which are planned as `here` is, or of runs, which have their plans. */
export async function compareBeside(
  here: PlannedBeside,
  others: readonly string[],
  { projectRoot, turnSeconds, deadlineMs }: Settings,
): Promise<ComparedBeside> {
  const runs = [here];
  for (const each of others) {
    if (each === "" || !existsSync(each))
      throw invalid(`--beside '${each}' is not there; give the folder of a workflow, or of a run, as 'runs/<id>'`);
    const isRun = existsSync(join(each, "config.json"));
    const other = await (isRun ? ofRun(each, here, projectRoot) : ofWorkflow(each, projectRoot, deadlineMs));
    const same = runs.filter(({ name }) => name.replace(/ \d+$/, "") === other.name).length;
    runs.push(same > 0 ? { ...other, name: `${other.name} ${same + 1}` } : other);
  }
  const limits = { ...besideLimits, residents: runs.length, turnMs: turnSeconds * 1000 };
  const beside = simulateBeside(runs, limits);
  return { ...beside, turnSeconds, partsSeconds: partsSeconds(runs, beside) };
}

const invalid = (message: string) => new TreadleError("problem.invalid", message);

/** What was measured is of steps of one size. */
export function checkBatch(name: string, { graph }: Profile, batch: number): void {
  if (graph.batch === batch) return;
  throw invalid(
    `runs beside each other are simulated with the batch that was profiled, which is ${graph.batch} for '${name}', not ${batch}; profile it with that batch, or plan for ${graph.batch}`,
  );
}

type Settings = { readonly projectRoot: string; readonly turnSeconds: number; readonly deadlineMs: number };

async function ofWorkflow(workflow: string, projectRoot: string, deadlineMs: number): Promise<PlannedBeside> {
  const name = basename(resolve(workflow));
  const profile = readProfile(profilePath(projectRoot, workflow), name);
  let planned: Omit<PlannedBeside, "pool"> | undefined;
  const { config, keys } = await validateWorkflow({
    workflow,
    projectRoot,
    decide: ({ components, devices, nodeGroups, explicit: pinned, batchItems, maxStaleness, wishes }) => {
      const batch = batchItems ?? profile.graph.batch;
      checkBatch(name, profile, batch);
      const asked = { batch, maxStaleness, components, nodeGroups, pinned, wishes };
      const limits = { deadlineMs, nowMs: () => performance.now() };
      const plan = planFromProfile(profile, { ...asked, devices, ...limits }).plan;
      const on = (some: readonly DeviceSpec[]) =>
        whereItFits(() => planFromProfile(profile, { ...asked, devices: some, ...limits }).plan);
      planned = { name, profile, devices, plan, on };
      return { plan, why: [] };
    },
  });
  const mismatch = describeMismatch(profile, keys);
  if (mismatch !== undefined) process.stderr.write(`! ${name}: ${singleLine(mismatch)}\n`);
  return { ...planned!, pool: config.pool };
}

/** With the devices' memory as it is here: pools are of one machine. */
async function ofRun(path: string, { devices }: PlannedRun, projectRoot: string): Promise<PlannedBeside> {
  const folder = new RunFolder(dirname(resolve(path)), basename(resolve(path)));
  const { workflow, config } = await folder.readConfig();
  const profile: Profile = readProfile(profilePath(projectRoot, resolve(projectRoot, workflow)), basename(workflow));
  const plan = await readPlanFile(folder.planFile);
  const stored = StoredPool.safeParse(config);
  if (!stored.success)
    throw invalid(`'${folder.configFile}' has no pool that is understood: ${z.prettifyError(stored.error)}`);
  const used = new Set(Object.values(plan.components).flatMap(({ ranks }) => ranks.flatMap((rank) => rank.devices)));
  const known = new Map(devices.map((device) => [device.id, device]));
  return {
    ...{ name: folder.runId, profile, plan, pool: stored.data.pool },
    devices: [...used].map((id, index) => known.get(id) ?? { ...devices[0]!, id, index }),
    on: () => undefined,
  };
}

/** Undefined where that is no question: for some run, nothing fits on its part of the devices. */
function partsSeconds(runs: readonly PlannedBeside[], { runs: compared }: Beside): number | undefined {
  const all = [...new Map(runs.flatMap(({ devices }) => devices.map((device) => [device.id, device]))).values()];
  const seconds = runs.map((run, i) => {
    const [from, to] = [i, i + 1].map((part) => Math.floor((part * all.length) / runs.length));
    const devices = all.slice(from, to);
    const plan = devices.length === 0 ? undefined : run.on(devices);
    if (plan === undefined) return undefined;
    return simulate({ plan, devices, profile: run.profile, steps: compared[i]!.steps, seed: 0 }).totalSeconds;
  });
  return seconds.every((each) => each !== undefined) ? Math.max(...seconds) : undefined;
}

export function whereItFits(plan: () => Plan): Plan | undefined {
  try {
    return plan();
  } catch (error) {
    if (error instanceof TreadleError && error.code.startsWith("placement.")) return undefined;
    throw error;
  }
}
