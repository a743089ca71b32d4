/** What modes take, beside each other, as a table in Markdown. */
import { mostLateMs } from "@treadle/runtime/runner";
import type { ComparedWorkload } from "../comparison/compared-workload.ts";
import { type DrawnResult, describeMiss } from "../comparison/drawn-workloads.ts";
import { isMissed, type Judged, judge, type SimulatedPlan, tally } from "../comparison/judge.ts";
import { markdownTable } from "./markdown-table.ts";
import { formatPercent, formatSeconds } from "./text.ts";

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

type JudgedOf = Judged & { readonly name: string; readonly lateMs: number };

const judgedIn = (results: readonly DrawnResult[]): JudgedOf[] =>
  results.flatMap(({ compared }) =>
    judge(compared?.plans ?? []).map((one) => ({
      name: compared?.name ?? "",
      lateMs: Math.max(compared?.profileLateMs ?? 0, one.plan.lateMs),
      ...one,
    })),
  );

type Share = { readonly within: number; readonly all: number };

const share = ({ within, all }: Share): string =>
  all > 0 ? `${within} of ${all}, ${formatPercent(within / all, 0)}` : "–";

/** `isKept` counts all that was measured. Many processes make timers late by themselves, so what was calm is the easier part. */
function promisesOf(judged: readonly JudgedOf[]) {
  const calm = tally(judged.filter(({ lateMs }) => lateMs <= mostLateMs));
  return tally(judged).map(({ what, wanted, ...all }, i) => {
    const { within, all: numCalm } = calm[i] ?? { within: 0, all: 0 };
    const isKept = all.all === 0 ? undefined : all.within >= wanted * all.all;
    return { what, wanted, all, calm: { within, all: numCalm }, isKept };
  });
}

/** Whether the drawn workloads miss what a comparison promises, or one of them could not run. */
export const missPromises = (results: readonly DrawnResult[]): boolean =>
  results.some(({ failure }) => failure !== undefined) ||
  promisesOf(judgedIn(results)).some(({ isKept }) => isKept === false);

/** One row a drawn workload, what could not run, how many kept within each limit, and what did not. */
export function drawnTable(results: readonly DrawnResult[]): string {
  const compared = results.flatMap((result) => (result.compared ? [{ ...result, compared: result.compared }] : []));
  const header = [
    "workload",
    "stages",
    "devices",
    ...modes,
    "auto",
    "auto / best",
    "predicted",
    "simulated",
    "profile",
    "timers late",
  ];
  const rows = compared.map(({ compared: workload }) => {
    const { name, components, plans, profileSeconds, profileLateMs, isJudgedAgain } = workload;
    const best = fastest(plans.filter((plan) => plan.by !== "auto"));
    const auto = plans.find((plan) => plan.by === "auto");
    const judged = judge(plans);
    return [
      isJudgedAgain ? `${name}, judged again` : name,
      String(components),
      String(plans[0]?.devices.length ?? 0),
      ...modes.map((mode) => cell(plans, mode)),
      auto ? `${formatSeconds(auto.stepSeconds)} (${auto.mode})` : "–",
      auto && best ? (auto.stepSeconds / best.stepSeconds).toFixed(3) : "–",
      worst(judged.filter(({ of }) => of === "predicted")),
      worst(judged.filter(({ of }) => of === "simulated")),
      formatSeconds(profileSeconds),
      `${Math.max(profileLateMs, ...plans.map(({ lateMs }) => lateMs)).toFixed(1)} ms`,
    ];
  });
  const judged = judgedIn(results);
  const within = promisesOf(judged).map(({ what, wanted, all, calm, isKept }) => {
    const least = wanted === 1 ? "all" : formatPercent(wanted, 0);
    return [what, least, share(all), share(calm), isKept === undefined ? "–" : isKept ? "kept" : "missed"];
  });
  const plans = compared.flatMap((each) => each.compared.plans);
  const unpredicted = plans.filter(({ predictedSeconds }) => predictedSeconds === undefined).length;
  const missed = judged
    .filter(isMissed)
    .map((one) => `- ${one.name}: ${describeMiss(one)}${one.lateMs > mostLateMs ? late(one.lateMs) : ""}`);
  const failed = results.flatMap(({ seed, index, failure }) =>
    failure === undefined ? [] : [`- ${seed}-${index} did not run: ${failure}`],
  );
  const again = compared.some(({ compared: { isJudgedAgain } }) => isJudgedAgain)
    ? ["What is judged again was measured before; its predictions and simulations are of the code as it is now."]
    : [];
  return [
    markdownTable(header, rows),
    ...again,
    `${compared.length} of ${results.length} workloads ran. ${plans.length - unpredicted} of their ${plans.length} plans have a prediction.`,
    markdownTable(["promise", "wanted", "within", "of it where timers were in time", "so it is"], within),
    [...missed, ...failed].join("\n") || "nothing is beyond its limit",
  ].join("\n\n");
}

const late = (lateMs: number): string => `; timers were ${lateMs.toFixed(1)} ms late`;

/** With its plan's mode. */
function worst(judged: readonly { readonly off: number; readonly plan: SimulatedPlan }[]): string {
  const [first] = judged.filter(({ off }) => !Number.isNaN(off)).toSorted((a, b) => Math.abs(b.off) - Math.abs(a.off));
  return first ? `${deviation(1, 1 + first.off)} (${first.plan.mode})` : "–";
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
