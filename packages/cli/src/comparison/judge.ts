/** What a comparison promises, and where one workload misses it. Pure. */
import type { ComparedPlan } from "@treadle/runtime/runner";

export type SimulatedPlan = ComparedPlan & {
  /** the mean step on virtual time, or why there is none */
  readonly simulated: { readonly seconds: number } | { readonly failure: string };
};

/** `off`: relative, above 0 where more was said than measured; of `auto`, what it took above the best mode. */
export type Judged = {
  readonly of: "auto" | "predicted" | "simulated";
  readonly plan: SimulatedPlan;
  readonly off: number;
  readonly limit: number;
  /** why there is nothing to compare, which misses any limit; `off` says nothing then */
  readonly failure?: string | undefined;
};

/** Automatic placement against the best measured mode; nearly always, and always. */
export const autoLimits = { nearly: 0.03, always: 0.06 } as const;
/** Of predictions and simulations against what was measured, most of the time. */
const predictionLimits = { temporal: 0.02, spatial: 0.05, hybrid: 0.05 } as const;
const simulationLimit = 0.03;

export const isMissed = ({ off, limit, of, failure }: Judged): boolean =>
  failure !== undefined || (of === "auto" ? off : Math.abs(off)) > limit;

/** Of the mean that was measured, and of the profile's that the prediction rests on, which is about as well known. */
const standardErrors = 2 * Math.SQRT2;

/** By more than measuring again would change. */
export const isClearlyMissed = (judged: Judged): boolean => {
  const { off, limit, of, plan, failure } = judged;
  if (failure !== undefined) return true;
  const error = (standardErrors * plan.standardError) / plan.stepSeconds;
  return (of === "auto" ? off : Math.abs(off)) > limit + error;
};

/** The share of workloads or plans that is to be within a limit. */
const wanted = { nearly: 0.95, always: 1, predictions: 0.9 } as const;

/** Everything about one workload that has a limit. */
export function judge(plans: readonly SimulatedPlan[]): Judged[] {
  const judged: Judged[] = [];
  const modes = plans.filter(({ by }) => by !== "auto").map(({ stepSeconds }) => stepSeconds);
  for (const plan of plans) {
    const { by, mode, stepSeconds, predictedSeconds, simulated } = plan;
    if (by === "auto" && modes.length > 0)
      judged.push({ of: "auto", plan, off: stepSeconds / Math.min(...modes) - 1, limit: autoLimits.nearly });
    if (predictedSeconds !== undefined)
      judged.push({ of: "predicted", plan, off: predictedSeconds / stepSeconds - 1, limit: predictionLimits[mode] });
    judged.push(
      "seconds" in simulated
        ? { of: "simulated", plan, off: simulated.seconds / stepSeconds - 1, limit: simulationLimit }
        : { of: "simulated", plan, off: Number.NaN, limit: simulationLimit, failure: simulated.failure },
    );
  }
  return judged;
}

/** How many of each kind there are, and how many of them are within their limit; `auto` also within the one for all. */
export function tally(
  judged: readonly Judged[],
): { readonly what: string; readonly wanted: number; readonly within: number; readonly all: number }[] {
  const count = (what: string, share: number, of: readonly Judged[], isWithin = (one: Judged) => !isMissed(one)) => ({
    what,
    wanted: share,
    within: of.filter(isWithin).length,
    all: of.length,
  });
  const percent = (share: number): string => `${Math.round(100 * share)} %`;
  const auto = judged.filter(({ of }) => of === "auto");
  const predicted = judged.filter(({ of }) => of === "predicted");
  const temporal = predicted.filter(({ plan }) => plan.mode === "temporal");
  const others = predicted.filter(({ plan }) => plan.mode !== "temporal");
  return [
    count(`auto within ${percent(autoLimits.nearly)} of the best mode`, wanted.nearly, auto),
    count(`auto within ${percent(autoLimits.always)}`, wanted.always, auto, ({ off }) => off <= autoLimits.always),
    count(`temporal predicted within ${percent(predictionLimits.temporal)}`, wanted.predictions, temporal),
    count(`others predicted within ${percent(predictionLimits.spatial)}`, wanted.predictions, others),
    count(
      `simulated within ${percent(simulationLimit)}`,
      wanted.predictions,
      judged.filter(({ of }) => of === "simulated"),
    ),
  ];
}
