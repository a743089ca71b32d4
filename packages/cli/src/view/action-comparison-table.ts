/** The simulated comparison of action scheduling as lines of Markdown tables. */
import { describePaper, describeWorkload } from "@treadle/dashboard";
import {
  type ActionScenario,
  type BehindFixed,
  bestFixed,
  type CodingComparison,
  type PaperFigure,
  type ServiceComparison,
} from "@treadle/simulation";
import { markdownTable, tableHeader, tableRow } from "./markdown-table.ts";
import { significant } from "./text.ts";

export const codingHeader = ({ fixedDegrees, pods }: ActionScenario): string =>
  tableHeader([
    "workload",
    "batch",
    "cores",
    "unit-aware",
    "paper",
    "best fixed",
    ...fixedDegrees.map((degree) => `fixed ${degree}`),
    "fcfs-min",
    ...pods.rewardWorkers.map((workers) => `pods, ${workers} at work`),
  ]);

export function codingRow(comparison: CodingComparison): string {
  const { batch, cores, unitAware, paper, fcfsMin, fixed, pods } = comparison;
  const best = bestFixed(comparison, "trajectory");
  return tableRow([
    describeWorkload(comparison),
    String(batch),
    String(cores),
    ...[unitAware.trajectory, paper.trajectory].map(significant),
    `${significant(best.value)} (${best.dop})`,
    ...[...fixed.map(({ figures }) => figures), fcfsMin, ...pods.map(({ figures }) => figures)].map(({ trajectory }) =>
      significant(trajectory),
    ),
  ]);
}

export const serviceHeader: string = tableHeader([
  "batch",
  "skew",
  "pace",
  "request",
  "restore",
  "requests at once",
  "dedicated",
  "pooled",
  "best fixed",
  "GPUs pooled for the same",
]);

export function serviceRow({ workload, dedicated, pooled, fixed, fewestGpus }: ServiceComparison): string {
  const { batch, skew, taskSpread, requestMedianSeconds, restoreSeconds, serverSlots } = workload;
  const gpus = workload.models * workload.gpusPerModel;
  return tableRow([
    String(batch),
    String(skew),
    String(taskSpread),
    `${requestMedianSeconds} s`,
    `${restoreSeconds} s`,
    String(serverSlots),
    significant(dedicated.act),
    significant(pooled.act),
    `${significant(fixed.act)} (${fixed.dop})`,
    fewestGpus === null ? `more than ${gpus}` : `${fewestGpus} of ${gpus}`,
  ]);
}

export const behindTable = (rows: readonly BehindFixed[]): string =>
  markdownTable(
    ["workloads", "number", "median", "most", "behind by more than 2 %"],
    rows.map(({ workloads, num, median, most, numBehind }) => [
      workloads,
      String(num),
      median.toFixed(2),
      most.toFixed(2),
      String(numBehind),
    ]),
  );

export function paperTable(figures: readonly PaperFigure[]): string {
  const rows = figures.map(({ name, paper, here }) => [
    name,
    describePaper({ paper }),
    here === null
      ? "no such point"
      : `${significant(here[0])} to ${significant(here[2])}, median ${significant(here[1])}`,
  ]);
  const notes = figures.filter(({ why }) => why !== null).map(({ name, why }) => `not reproduced: ${name}: ${why}`);
  return [
    markdownTable(["ratio", "ARL-Tangram", "here, over the workloads"], rows),
    ...(notes.length > 0 ? ["", ...notes] : []),
  ].join("\n");
}
