/** One workload in every mode: what was predicted, what it took, and what automatic placement makes of it. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DeviceSpec, mean, type PlacementMode, type Plan, type Profile, TreadleError } from "@treadle/contracts";
import { layoutOf, type PlanFromProfile, planFromProfile, predictPlan } from "@treadle/planner";
import type { PlacementFacts, PlannedChange } from "../placement/placement-facts.ts";
import { type MeasureOptions, profileWorkflow } from "./measure.ts";
import { runWorkflow, validateWorkflow } from "./start-run.ts";
import { TimerLateness } from "./timer-lateness.ts";

/** One way in which the workload ran. */
export type ComparedPlan = {
  readonly mode: PlacementMode;
  /** `default`: what the mode does by itself; `planned`: the best plan of that mode; `auto`: what `auto` settled on */
  readonly by: "default" | "planned" | "auto";
  readonly plan: Plan;
  /** of the cluster */
  readonly devices: readonly DeviceSpec[];
  /** of plans that the planner knows, whoever made them */
  readonly predictedSeconds: number | undefined;
  /** mean of the steps that were measured: what a run takes is their sum */
  readonly stepSeconds: number;
  /** of that mean, in seconds, from how far single steps were off it */
  readonly standardError: number;
  /** the same for plans that do the same */
  readonly layout: string;
  /** how late timers were on average while its steps were measured: what else ran on the machine */
  readonly lateMs: number;
};

/** Where timers are later than this on average, what sleeps takes longer than it should: the machine is disturbed. */
export const mostLateMs = 0.5;

export type Comparison = {
  readonly profile: Profile;
  readonly plans: readonly ComparedPlan[];
  /** that measuring and trying plans took, which automatic placement costs once */
  readonly profileSeconds: number;
  /** how late timers were during its steps */
  readonly profileLateMs: number;
};

export type CompareOptions = MeasureOptions & {
  /** measured under each plan at least, after some that are not */
  readonly steps: number;
  /** it is measured until the relative error of its mean is no more than this, for at most eight times as many steps */
  readonly precision: number;
  /** times that something is measured once more where the machine was disturbed; what was disturbed least counts */
  readonly repeats?: number | undefined;
  /** a plan that is about to run, for whoever watches */
  readonly onPlan?: ((name: string) => void) | undefined;
};

const modes: readonly PlacementMode[] = ["temporal", "spatial", "hybrid"];
const warmupSteps = 2;
const mostTimes = 8;

/** Profiles the workload, then runs it in each mode as it is by default, as it is planned best, and automatically. */
export async function compareModes(options: CompareOptions): Promise<Comparison> {
  const measured = await undisturbed(options, "profile", async () => {
    const startedMs = performance.now();
    const lateness = new TimerLateness();
    const { profile } = await profileWorkflow({ ...options, onEvent: watched(lateness, options.onEvent) });
    return { profile, profileSeconds: (performance.now() - startedMs) / 1000, lateMs: lateness.meanMs };
  });
  if (!measured) throw new TreadleError("run.stopped", `'${options.workflow}' was not measured`);
  const { profile, profileSeconds, lateMs: profileLateMs } = measured;
  const plans: ComparedPlan[] = [];
  for (const by of ["default", "planned", "auto"] as const) {
    for (const mode of by === "auto" ? ["auto" as const] : modes) {
      const ran = new Set(plans.map(({ layout }) => layout));
      const name = by === "auto" ? "auto" : `${by} ${mode}`;
      const compared = await undisturbed(options, name, () => runOnce(options, by, mode, profile, ran));
      if (compared) plans.push(compared);
    }
  }
  return { profile, plans, profileSeconds, profileLateMs };
}

/** What was measured while the machine was disturbed least, of as many tries as it takes and there may be. */
async function undisturbed<T extends { readonly lateMs: number }>(
  { repeats = 0, onPlan }: CompareOptions,
  name: string,
  measure: () => Promise<T | undefined>,
): Promise<T | undefined> {
  let best: T | undefined;
  for (let tries = 0; tries <= repeats; tries++) {
    onPlan?.(best === undefined ? name : `${name}, again: timers were ${best.lateMs.toFixed(1)} ms late`);
    const found = await measure();
    if (found === undefined) break;
    if (best === undefined || found.lateMs < best.lateMs) best = found;
    if (best.lateMs <= mostLateMs) break;
  }
  return best;
}

/** Lateness counts during steps alone, and not in those in which processes start, which keep the processors busy. */
function watched(lateness: TimerLateness, onEvent: CompareOptions["onEvent"]): CompareOptions["onEvent"] {
  let hasStarts = false;
  return (event) => {
    if (event.type === "step-started") {
      hasStarts = false;
      lateness.resume();
    } else if (event.type === "worker-started") hasStarts = true;
    else if (event.type === "step-finished" || event.type === "run-finished") {
      lateness.pause();
      if (hasStarts) lateness.forget();
    }
    onEvent(event);
  };
}

const alreadyRan = Symbol("already ran");

/** Undefined where the mode is impossible, or the plan ran before. */
async function runOnce(
  options: CompareOptions,
  by: ComparedPlan["by"],
  mode: PlacementMode | "auto",
  profile: Profile,
  ran: ReadonlySet<string>,
): Promise<ComparedPlan | undefined> {
  const runsRoot = await mkdtemp(join(tmpdir(), "treadle-compare-"));
  const seconds: number[] = [];
  const enough = new AbortController();
  const lateness = new TimerLateness();
  const onEvent = watched(lateness, options.onEvent);
  let placed: { readonly plan: Plan; readonly facts: PlacementFacts } | undefined;
  const decide = (facts: PlacementFacts): PlannedChange => {
    const { alternatives, missing } = planAll(profile, facts);
    const found = alternatives.find((each) => each.mode === mode);
    for (const { why } of missing.filter((each) => each.mode === mode)) options.onPlan?.(`${by} ${mode}: ${why}`);
    if (!found || ran.has(layoutOf(found.plan).name)) throw alreadyRan;
    return { plan: found.plan, why: [`the best ${mode} plan`] };
  };
  try {
    await runWorkflow({
      ...options,
      overrides: [
        ...(options.overrides ?? []),
        `placement.mode=${mode}`,
        `steps=${warmupSteps + mostTimes * options.steps}`,
        "placement.auto.driftThreshold=1000", // the plan under comparison stays
      ],
      runsRoot,
      stop: AbortSignal.any([enough.signal, ...(options.stop ? [options.stop] : [])]),
      ...(by === "planned" ? { decide } : {}),
      onPlaced: (plan, facts) => {
        placed = { plan, facts };
      },
      onEvent: (event) => {
        if (event.type !== "step-started" || event.step > warmupSteps) onEvent(event);
        else options.onEvent(event);
        if (event.type !== "step-finished" || event.step <= warmupSteps) return;
        seconds.push(event.seconds);
        const isPrecise = standardErrorOf(seconds) <= options.precision * mean(seconds);
        if (seconds.length >= options.steps && isPrecise) enough.abort();
      },
    });
  } catch (error) {
    if (error === alreadyRan) return undefined;
    if (by === "default" && error instanceof TreadleError && error.code === "placement.impossible") return undefined;
    throw error;
  } finally {
    lateness.pause();
    await rm(runsRoot, { recursive: true, force: true });
  }
  if (!placed || seconds.length === 0) return undefined;
  const { plan, facts } = placed;
  const layout = layoutOf(plan).name;
  return {
    mode: plan.mode,
    by,
    plan,
    devices: facts.devices,
    predictedSeconds: predictOne(profile, facts, { plan, layout }),
    stepSeconds: mean(seconds),
    standardError: standardErrorOf(seconds),
    layout,
    lateMs: lateness.meanMs,
  };
}

/** Of the mean. */
function standardErrorOf(values: readonly number[]): number {
  const middle = mean(values);
  const squares = values.reduce((sum, each) => sum + (each - middle) ** 2, 0);
  return Math.sqrt(squares / Math.max(1, values.length - 1) / values.length);
}

/**
 * Plans that were compared, predicted by the planner as it is now from the profile that was kept with them; runs nothing. Those
 * that it did not know then stay without a prediction.
 */
export async function predictAgain(
  options: Pick<MeasureOptions, "workflow" | "configFile" | "overrides" | "projectRoot">,
  profile: Profile,
  plans: readonly ComparedPlan[],
): Promise<ComparedPlan[]> {
  const predicted: ComparedPlan[] = [];
  await validateWorkflow({
    ...options,
    decide: (here) => {
      for (const plan of plans) {
        const facts = { ...here, devices: [...plan.devices] };
        const predictedSeconds = plan.predictedSeconds === undefined ? undefined : predictOne(profile, facts, plan);
        predicted.push({ ...plan, predictedSeconds });
      }
      return { plan: plans[0]!.plan, why: [] };
    },
  });
  return predicted;
}

/** As the best plan of its mode where it still is that, else by itself. */
function predictOne(
  profile: Profile,
  facts: PlacementFacts,
  { plan, layout }: Pick<ComparedPlan, "plan" | "layout">,
): number | undefined {
  const { components, devices, batchItems: batch = profile.graph.batch } = facts;
  const found = planAll(profile, facts).alternatives.find((each) => layoutOf(each.plan).name === layout);
  return found?.stepSeconds ?? predictPlan(profile, plan, { components, devices, batch });
}

/** The best plan of each mode. */
function planAll(profile: Profile, facts: PlacementFacts): PlanFromProfile {
  const { components, devices, nodeGroups, explicit: pinned, maxStaleness, wishes } = facts;
  const batch = facts.batchItems ?? profile.graph.batch;
  const target = { components, devices, nodeGroups, pinned, batch, maxStaleness, wishes };
  return planFromProfile(profile, { ...target, deadlineMs: 2000, nowMs: () => performance.now() });
}
