/** The simulated comparison of rollouts, and how well they were predicted, as lines of Markdown tables. */
import { median } from "@treadle/contracts";
import {
  leftOut,
  type PartsComparison,
  type RolloutComparison,
  type Throughput,
  type WorkloadPredictor,
} from "@treadle/simulation";
import { markdownTable, tableHeader, tableRow } from "./markdown-table.ts";
import { formatPercent, significant } from "./text.ts";

const modelsShown = ["served", "learned", "prompt-history", "tokens-so-far", "constant", "oracle"] as const;

/** Of tokens, by turns that are over, on steps after those learned from. */
export function predictorTable(predictors: readonly WorkloadPredictor[]): string {
  const rows = predictors.flatMap(({ workload, report }) =>
    report.rows
      .filter(({ quantity }) => quantity === "tokens")
      .sort((a, b) => modelsShown.indexOf(a.model) - modelsShown.indexOf(b.model))
      .sort((a, b) => a.stage.localeCompare(b.stage))
      .map(({ stage, model, count, pearson, recallOfLongest, logSd, coverage }) => [
        workload,
        stage,
        model,
        String(count),
        pearson === null ? "–" : pearson.toFixed(2),
        recallOfLongest.toFixed(2),
        logSd.toFixed(2),
        formatPercent(coverage),
      ]),
  );
  const names = [
    "workload",
    "turns",
    "tokens left by",
    "episodes",
    "Pearson",
    "recall of longest 10 %",
    "log-sd",
    "in 80 %",
  ];
  const notes = predictors.flatMap(({ workload, report }) => report.notBetter.map((line) => `${workload}: ${line}`));
  return [markdownTable(names, rows), ...(notes.length > 0 ? ["", ...notes] : [])].join("\n");
}

export const rolloutHeader: string = tableHeader([
  "workload",
  "episodes",
  "F",
  "predicted",
  "Verl-like",
  "hybrid",
  "least load",
  "priority alone",
  "placement alone",
  "whole: stay",
  "scaled",
  "anew",
  "pays",
  "chosen",
  "which",
  "best simple",
  "which",
  "chosen / best simple",
  "divided",
  "tail batching",
]);

export function rolloutRow(comparison: RolloutComparison): string {
  const { workload, episodes, F, predictions, logSd, verl, whole, chosen, bestSimple } = comparison;
  const { hybrid, leastLoad, priorityAlone, placementAlone, divided, tailBatching } = comparison;
  const over = (each: Throughput) => (each.tokensPerSecond / verl.tokensPerSecond).toFixed(2);
  return tableRow([
    workload,
    String(episodes),
    F.type === "affine" ? `1 + ${F.slope} (k-1)` : F.type,
    `${predictedBy(predictions)}, ${logSd.toFixed(2)}`,
    significant(verl.tokensPerSecond),
    ...[hybrid, leastLoad, priorityAlone, placementAlone, ...whole, chosen].map(over),
    chosen.name,
    over(bestSimple),
    bestSimple.name,
    (chosen.tokensPerSecond / bestSimple.tokensPerSecond).toFixed(2),
    over(divided),
    over(tailBatching),
  ]);
}

const predictedBy = (predictions: RolloutComparison["predictions"]): string =>
  typeof predictions === "string" ? predictions : "off";

/** What a configuration says of each setting that the shipped predictor foretold, as far as its degrees are proposed. */
export function degreesProposed(comparisons: readonly RolloutComparison[]): string[] {
  return comparisons
    .filter(({ predictions }) => predictions === "learned")
    .map(({ workload, episodes, F, chosen }) => {
      const slope = F.type === "affine" ? ` F slope ${F.slope},` : "";
      return `${workload}, ${episodes} episodes,${slope} ${chosen.name}: rollout.degrees=[${chosen.degrees.join(",")}]`;
    });
}

/** Over all settings: how often and by how much each way beats what is simple. */
export function rolloutSummary(comparisons: readonly RolloutComparison[]): string {
  const ways = new Map<string, { verl: number[]; simple: number[] }>();
  for (const { verl, bestSimple, whole, chosen, priorityAlone, placementAlone, ...others } of comparisons) {
    const all = [
      ...[priorityAlone, placementAlone, ...whole].map((each) => [each.name, each] as const),
      ["chosen", chosen] as const,
      [`chosen, predictions ${predictedBy(others.predictions)}`, chosen] as const,
      ["divided, best degree", others.divided] as const,
      ["tail batching, best degree", others.tailBatching] as const,
    ];
    for (const [name, { tokensPerSecond }] of all) {
      const ratios = ways.get(name) ?? { verl: [], simple: [] };
      ratios.verl.push(tokensPerSecond / verl.tokensPerSecond);
      ratios.simple.push(tokensPerSecond / bestSimple.tokensPerSecond);
      ways.set(name, ratios);
    }
  }
  const rows = [...ways].map(([name, { verl, simple }]) => [
    name,
    rangeOf(verl),
    rangeOf(simple),
    `${simple.filter((ratio) => ratio >= 0.97).length} of ${simple.length}`,
  ]);
  return markdownTable(["way", "over Verl-like", "over the best simple", "at least 0.97 of that"], rows);
}

export const partsHeader: string = tableHeader([
  "workload",
  "F",
  "seed",
  "Verl-like",
  "hybrid",
  "least load",
  "best simple",
  "which",
  "all parts",
  "degrees",
  ...leftOut.map((part) => `without ${part}`),
  "chosen",
  "which",
  "all / best simple",
  "chosen / best simple",
  "oracle",
  "which",
  "bound: longest alone",
  "bound: all devices busy",
]);

export function partsRow(comparison: PartsComparison): string {
  const { workload, F, seed, verl, hybrid, leastLoad, bestSimple, all, without, chosen, oracle, bounds } = comparison;
  const over = (each: number, other = verl) => (each / other).toFixed(2);
  return tableRow([
    workload,
    F.type === "affine" ? `1 + ${F.slope} (k-1)` : F.type,
    String(seed),
    significant(verl),
    ...[hybrid, leastLoad, bestSimple].map((each) => over(each)),
    comparison.bestSimpleName,
    over(all),
    widths(comparison.degrees),
    ...leftOut.map((part) => over(without[part])),
    over(chosen),
    comparison.chosenName,
    over(all, bestSimple),
    over(chosen, bestSimple),
    over(oracle),
    comparison.oracleName,
    over(bounds.longest),
    over(bounds.work),
  ]);
}

/** Such as `2 × 8, 48 × 1`. */
const widths = (degrees: readonly number[]): string =>
  [...new Set(degrees)].map((degree) => `${degrees.filter((each) => each === degree).length} × ${degree}`).join(", ");

/** Over all settings: what each part is worth, and how often a way keeps up with what is simple. */
export function partsSummary(comparisons: readonly PartsComparison[]): string {
  const rows = (
    [
      ["all parts", ({ all }) => all],
      ...leftOut.map((part): Speed => [`without ${part}`, ({ without }) => without[part]]),
      ["chosen", ({ chosen }) => chosen],
      ["hybrid", ({ hybrid }) => hybrid],
      ["least load", ({ leastLoad }) => leastLoad],
      ["oracle: every length known", ({ oracle }) => oracle],
      ["bound of any way", ({ bounds }) => Math.min(bounds.longest, bounds.work)],
    ] satisfies Speed[]
  ).map(([name, of]) => {
    const simple = comparisons.map((each) => of(each) / each.bestSimple);
    return [
      name,
      rangeOf(comparisons.map((each) => of(each) / each.verl)),
      rangeOf(simple),
      `${simple.filter((ratio) => ratio >= 0.97).length} of ${simple.length}`,
      rangeOf(comparisons.map((each) => of(each) / each.all)),
    ];
  });
  return markdownTable(
    ["way", "over Verl-like", "over the best simple", "at least 0.97 of that", "over all parts"],
    rows,
  );
}

/** Of measured runs (Heddle §7): other models, tools, machines and predictors than what is simulated. */
export const partsOfPaper: string = markdownTable(
  ["Heddle measured", "of all parts", "of one part"],
  [
    ["over Verl: cache placement", "1.4 to 2.3", "–"],
    ["over Verl with hybrid placement", "1.1 to 2.4", "–"],
    ["over Slime: least load", "1.2 to 2.5", "–"],
    ["order, over others", "–", "1.1 to 1.26"],
    ["placement with moves, over others", "–", "1.2 to 1.5"],
    ["degrees, over equal ones", "–", "1.1 to 1.3"],
  ],
);

type Speed = [name: string, of: (comparison: PartsComparison) => number];

const rangeOf = (values: readonly number[]): string =>
  `${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}, median ${median(values).toFixed(2)}`;
