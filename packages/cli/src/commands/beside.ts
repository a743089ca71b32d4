/** `treadle plan --beside`: what a workflow loses and gains beside others that have the same devices. */
import { existsSync, readFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { type DeviceSpec, Plan, PoolConfig, type Profile, TreadleError } from "@treadle/contracts";
import { planFromProfile } from "@treadle/planner";
import { profilePath, RunFolder, readProfile, validateWorkflow } from "@treadle/runtime/runner";
import { type Beside, type PlannedRun, simulateBeside } from "@treadle/simulation";
import { z } from "zod";

/** `on`: its plan on some of its devices; undefined where none fits, or where it runs and is not planned again. */
export type PlannedBeside = PlannedRun & { readonly on: (devices: readonly DeviceSpec[]) => Plan | undefined };

/** `partsSeconds`: of the same steps, where each run has its part of the devices for itself. */
export type ComparedBeside = Beside & { readonly turnSeconds: number; readonly partsSeconds: number | undefined };

const StoredPool = z.looseObject({ pool: PoolConfig.prefault({}) });
/** Those of `treadle multiplex`, but for turns. */
const patienceMs = 60_000;
const never = Number.MAX_SAFE_INTEGER;

/** `others`: folders of workflows, which are planned as `here` is, or of runs, which have their plans. */
export async function compareBeside(
  here: PlannedBeside,
  others: readonly string[],
  { projectRoot, turnSeconds, deadlineMs }: Settings,
): Promise<ComparedBeside> {
  const runs = [here];
  for (const each of others) {
    const other = await (existsSync(join(each, "plan.json"))
      ? ofRun(each, here, projectRoot)
      : ofWorkflow(each, projectRoot, deadlineMs));
    const same = runs.filter(({ name }) => name.replace(/ \d+$/, "") === other.name).length;
    runs.push(same > 0 ? { ...other, name: `${other.name} ${same + 1}` } : other);
  }
  const limits = {
    ...{ residents: runs.length, turnMs: turnSeconds * 1000, patienceMs },
    ...{ yieldMs: never, beatLimitMs: never },
  };
  const beside = simulateBeside(runs, limits);
  return { ...beside, turnSeconds, partsSeconds: partsSeconds(runs, beside) };
}

type Settings = { readonly projectRoot: string; readonly turnSeconds: number; readonly deadlineMs: number };

async function ofWorkflow(workflow: string, projectRoot: string, deadlineMs: number): Promise<PlannedBeside> {
  const name = basename(resolve(workflow));
  const profile = readProfile(profilePath(projectRoot, workflow), name);
  let planned: Omit<PlannedBeside, "pool"> | undefined;
  const { config } = await validateWorkflow({
    workflow,
    projectRoot,
    decide: ({ components, devices, nodeGroups, explicit: pinned, batchItems, maxStaleness, wishes }) => {
      const batch = batchItems ?? profile.graph.batch;
      const asked = { batch, maxStaleness, components, nodeGroups, pinned, wishes };
      const limits = { deadlineMs, nowMs: () => performance.now() };
      const plan = planFromProfile(profile, { ...asked, devices, ...limits }).plan;
      const on = (some: readonly DeviceSpec[]) =>
        whereItFits(() => planFromProfile(profile, { ...asked, devices: some, ...limits }).plan);
      planned = { name, profile, devices, plan, on };
      return { plan, why: [] };
    },
  });
  return { ...planned!, pool: config.pool };
}

/** With the devices' memory as it is here: pools are of one machine. */
async function ofRun(path: string, { devices }: PlannedRun, projectRoot: string): Promise<PlannedBeside> {
  const folder = new RunFolder(dirname(resolve(path)), basename(resolve(path)));
  const { workflow, config } = await folder.readConfig();
  const profile: Profile = readProfile(profilePath(projectRoot, resolve(projectRoot, workflow)), basename(workflow));
  const plan = Plan.parse(JSON.parse(readFileSync(folder.planFile, "utf8")));
  const used = new Set(Object.values(plan.components).flatMap(({ ranks }) => ranks.flatMap((rank) => rank.devices)));
  const known = new Map(devices.map((device) => [device.id, device]));
  return {
    ...{ name: folder.runId, profile, plan, pool: StoredPool.parse(config).pool },
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
    const limits = { residents: 1, turnMs: never, patienceMs, yieldMs: never, beatLimitMs: never };
    const [alone] = simulateBeside([{ ...run, plan, devices, pool: PoolConfig.parse({}) }], limits).runs;
    return alone!.aloneSeconds * compared[i]!.steps;
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
