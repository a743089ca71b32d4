/** What modes take, beside each other, as a table in Markdown. */
import type { Profile } from "@treadle/contracts";
import type { ComparedPlan } from "@treadle/runtime/runner";
import { markdownTable } from "./markdown-table.ts";
import { formatPercent, formatSeconds } from "./text.ts";

export type SimulatedPlan = ComparedPlan & {
  /** the median step on virtual time, or why there is none */
  readonly simulated: { readonly seconds: number } | { readonly failure: string };
};

export type ComparedWorkload = {
  readonly name: string;
  readonly components: number;
  readonly plans: readonly SimulatedPlan[];
  /** what predictions and simulations rest on */
  readonly profile: Profile;
};

const modes = ["temporal", "spatial", "hybrid"] as const;

/** One row a workload: the fastest of each mode, what was predicted of planned ones, and automatic placement. */
export function compareTable(workloads: readonly ComparedWorkload[]): string {
  const header = ["workload", "components", "devices", ...modes, "auto", "auto / best", "fastest mode, by"];
  const rows = workloads.map((workload) => {
    const best = fastest(workload.plans.filter((plan) => plan.by !== "auto"));
    const auto = workload.plans.find((plan) => plan.by === "auto");
    const cells = modes.map((mode) => cell(workload.plans, mode));
    const others = modes.filter((mode) => mode !== best?.mode).map((mode) => fastest(ofMode(workload.plans, mode)));
    const second = Math.min(...others.map((plan) => plan?.stepSeconds ?? Number.POSITIVE_INFINITY));
    const lead = best && Number.isFinite(second) ? formatPercent(second / best.stepSeconds - 1, 0) : "–";
    return [
      workload.name,
      String(workload.components),
      String(workload.plans[0]?.devices.length ?? 0),
      ...cells,
      auto ? `${formatSeconds(auto.stepSeconds)} (${auto.mode})` : "–",
      auto && best ? (auto.stepSeconds / best.stepSeconds).toFixed(2) : "–",
      best ? `${best.mode}, ${lead}` : "–",
    ];
  });
  return markdownTable(header, rows);
}

/** One row a plan: how far the planner's prediction and the simulation were from what was measured. */
export function predictionTable(workloads: readonly ComparedWorkload[]): string {
  const rows = workloads.flatMap(({ name, plans }) =>
    plans.map(({ mode, by, stepSeconds, standardError, predictedSeconds, simulated }) => [
      name,
      `${mode}, ${by}`,
      formatSeconds(stepSeconds),
      `± ${formatPercent(standardError / stepSeconds)}`,
      predictedSeconds === undefined ? "–" : deviation(stepSeconds, predictedSeconds),
      "seconds" in simulated ? deviation(stepSeconds, simulated.seconds) : `failed: ${simulated.failure}`,
    ]),
  );
  return markdownTable(["workload", "plan", "measured", "known to", "predicted", "simulated"], rows);
}

/** A line for each plan of one workload. */
export function summariseComparison({ name, plans }: ComparedWorkload): string {
  return plans
    .map(({ mode, by, stepSeconds, predictedSeconds, simulated }) => {
      const predicted =
        predictedSeconds === undefined
          ? ""
          : `, predicted ${formatSeconds(predictedSeconds)} (${deviation(stepSeconds, predictedSeconds)})`;
      const onVirtualTime =
        "seconds" in simulated
          ? `, simulated ${formatSeconds(simulated.seconds)} (${deviation(stepSeconds, simulated.seconds)})`
          : `, not simulated: ${simulated.failure}`;
      return `${name}: ${mode} ${by}: ${formatSeconds(stepSeconds)} a step${predicted}${onVirtualTime}`;
    })
    .join("\n");
}

function cell(plans: readonly SimulatedPlan[], mode: (typeof modes)[number]): string {
  const best = fastest(ofMode(plans, mode));
  return best ? formatSeconds(best.stepSeconds) : "–";
}

/** How far the prediction was off, of what was measured. */
const deviation = (measured: number, predicted: number): string => {
  const share = predicted / measured - 1;
  return `${share >= 0 ? "+" : "−"}${formatPercent(Math.abs(share))}`;
};

const ofMode = (plans: readonly SimulatedPlan[], mode: string) =>
  plans.filter((plan) => plan.by !== "auto" && plan.mode === mode);

function fastest(plans: readonly SimulatedPlan[]): SimulatedPlan | undefined {
  return plans.toSorted((a, b) => a.stepSeconds - b.stepSeconds)[0];
}
