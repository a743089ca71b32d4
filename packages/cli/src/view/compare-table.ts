/** What modes take, beside each other, as a table in Markdown. */
import type { ComparedPlan } from "@treadle/runtime";
import { formatPercent, formatSeconds } from "./text.ts";

export type ComparedWorkload = {
  readonly name: string;
  readonly components: number;
  readonly plans: readonly ComparedPlan[];
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
      String(Math.max(...workload.plans.map((plan) => plan.devices))),
      ...cells,
      auto ? `${formatSeconds(auto.stepSeconds)} (${auto.mode})` : "–",
      auto && best ? (auto.stepSeconds / best.stepSeconds).toFixed(2) : "–",
      best ? `${best.mode}, ${lead}` : "–",
    ];
  });
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(header), line(header.map(() => "---")), ...rows.map(line)].join("\n");
}

/** A line for each plan of one workload. */
export function summariseComparison({ name, plans }: ComparedWorkload): string {
  return plans
    .map(({ mode, by, stepSeconds, predictedSeconds }) => {
      const predicted =
        predictedSeconds === undefined
          ? ""
          : `, predicted ${formatSeconds(predictedSeconds)} (${deviation(stepSeconds, predictedSeconds)})`;
      return `${name}: ${mode} ${by}: ${formatSeconds(stepSeconds)} a step${predicted}`;
    })
    .join("\n");
}

function cell(plans: readonly ComparedPlan[], mode: (typeof modes)[number]): string {
  const best = fastest(ofMode(plans, mode));
  if (!best) return "–";
  const { predictedSeconds, stepSeconds } = best;
  return predictedSeconds === undefined
    ? formatSeconds(stepSeconds)
    : `${formatSeconds(stepSeconds)} (${deviation(stepSeconds, predictedSeconds)})`;
}

/** How far the prediction was off, of what was measured. */
const deviation = (measured: number, predicted: number): string => {
  const share = predicted / measured - 1;
  return `${share >= 0 ? "+" : "−"}${formatPercent(Math.abs(share))}`;
};

const ofMode = (plans: readonly ComparedPlan[], mode: string) =>
  plans.filter((plan) => plan.by !== "auto" && plan.mode === mode);

function fastest(plans: readonly ComparedPlan[]): ComparedPlan | undefined {
  return plans.toSorted((a, b) => a.stepSeconds - b.stepSeconds)[0];
}
