/** One workload in every mode: what was predicted, what it took, and what automatic placement makes of it. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DeviceSpec, median, type PlacementMode, type Plan, type Profile, TreadleError } from "@treadle/contracts";
import { layoutOf, type PlanFromProfile, planFromProfile } from "@treadle/planner";
import type { PlacementFacts, PlannedChange } from "../cluster/placement-facts.ts";
import { type MeasureOptions, profileWorkflow } from "./measure.ts";
import { runWorkflow } from "./start-run.ts";

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
  /** median of the steps that were measured */
  readonly stepSeconds: number;
  /** of that median, in seconds, from how far single steps were off it */
  readonly standardError: number;
  /** the same for plans that do the same */
  readonly layout: string;
};

export type Comparison = { readonly profile: Profile; readonly plans: readonly ComparedPlan[] };

export type CompareOptions = MeasureOptions & {
  /** measured under each plan, after as many that are not */
  readonly steps: number;
  /** a plan that is about to run, for whoever watches */
  readonly onPlan?: ((name: string) => void) | undefined;
};

const modes: readonly PlacementMode[] = ["temporal", "spatial", "hybrid"];
const warmupSteps = 2;

/** Profiles the workload, then runs it in each mode as it is by default, as it is planned best, and automatically. */
export async function compareModes(options: CompareOptions): Promise<Comparison> {
  options.onPlan?.("profile");
  const { profile } = await profileWorkflow(options);
  const plans: ComparedPlan[] = [];
  for (const by of ["default", "planned", "auto"] as const) {
    for (const mode of by === "auto" ? ["auto" as const] : modes) {
      options.onPlan?.(by === "auto" ? "auto" : `${by} ${mode}`);
      const compared = await runOnce(options, by, mode, profile, new Set(plans.map(({ layout }) => layout)));
      if (compared) plans.push(compared);
    }
  }
  return { profile, plans };
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
  let placed: { readonly plan: Plan; readonly facts: PlacementFacts } | undefined;
  const decide = (facts: PlacementFacts): PlannedChange => {
    const found = planAll(profile, facts).find((each) => each.mode === mode);
    if (!found || ran.has(layoutOf(found.plan).name)) throw alreadyRan;
    return { plan: found.plan, why: [`the best ${mode} plan`] };
  };
  try {
    await runWorkflow({
      ...options,
      overrides: [
        ...(options.overrides ?? []),
        `placement.mode=${mode}`,
        `steps=${warmupSteps + options.steps}`,
        "placement.auto.driftThreshold=1000", // the plan under comparison stays
      ],
      runsRoot,
      ...(by === "planned" ? { decide } : {}),
      onPlaced: (plan, facts) => {
        placed = { plan, facts };
      },
      onEvent: (event) => {
        options.onEvent(event);
        if (event.type === "step-finished" && event.step > warmupSteps) seconds.push(event.seconds);
      },
    });
  } catch (error) {
    if (error === alreadyRan) return undefined;
    if (by === "default" && error instanceof TreadleError && error.code === "placement.impossible") return undefined;
    throw error;
  } finally {
    await rm(runsRoot, { recursive: true, force: true });
  }
  if (!placed || seconds.length === 0) return undefined;
  const { plan, facts } = placed;
  const layout = layoutOf(plan).name;
  const stepSeconds = median(seconds);
  // As of a normal: its deviation is 1.4826 of the median absolute one, its median's error 1.2533 of its mean's.
  const deviation = 1.4826 * median(seconds.map((each) => Math.abs(each - stepSeconds)));
  return {
    mode: plan.mode,
    by,
    plan,
    devices: facts.devices,
    predictedSeconds: planAll(profile, facts).find((each) => layoutOf(each.plan).name === layout)?.stepSeconds,
    stepSeconds,
    standardError: (1.2533 * deviation) / Math.sqrt(seconds.length),
    layout,
  };
}

/** The best plan of each mode. */
function planAll(profile: Profile, facts: PlacementFacts): PlanFromProfile["alternatives"] {
  const { components, devices, nodeGroups, batchItems: batch = profile.graph.batch, maxStaleness } = facts;
  const target = { components, devices, nodeGroups, batch, maxStaleness };
  return planFromProfile(profile, { ...target, deadlineMs: 2000, nowMs: () => performance.now() }).alternatives;
}
