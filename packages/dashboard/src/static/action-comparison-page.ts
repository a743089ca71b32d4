/** The simulated comparison of action scheduling as a page: a chart a workload, its figures, and the paper's beside. */
import {
  type ActionScenario,
  bestFixed,
  type CodingComparison,
  type PaperFigure,
  type ServiceComparison,
} from "@treadle/simulation";
import { formatPercent, plural, significant } from "../view/format.ts";
import { renderChart, type Series } from "./chart.ts";
import { escapeHtml } from "./html.ts";
import { reportPage } from "./report-page.ts";

export function actionComparisonPage(
  scenario: ActionScenario,
  coding: readonly CodingComparison[],
  services: readonly ServiceComparison[],
  figures: readonly PaperFigure[],
): string {
  const { name, nodes, seed, pods } = scenario;
  const workloads = groupBy(coding, describeWorkload);
  return reportPage({
    title: `actions, scenario ${name}`,
    heading: `actions, scenario ${name}`,
    facts: [
      plural(nodes, "node"),
      `pods: ${pods.requestCores} to ${pods.limitCores} cores, ${pods.podsPerNode} a node, ${pods.podsPerSecond} a second`,
      `seed ${seed}`,
    ],
    tiles: figures
      .filter(({ here }) => here !== null)
      .slice(0, 8)
      .map((figure) => ({
        name: figure.name,
        value: significant(figure.here![1]),
        note: `${figure
          .here!.filter((_, i) => i !== 1)
          .map(significant)
          .join(" to ")}; ARL-Tangram ${describePaper(figure)}`,
      })),
    body: [
      "<p>Ratios above 1 are in favour of unit-aware, or of pooling: the median over the workloads, and their range.</p>",
      "<h2>ACT of a trajectory by batch, seconds</h2>",
      `<div class="charts">${[...workloads].map(([title, of]) => batchChart(title, of)).join("\n")}</div>`,
      services.length === 0 ? "" : serviceTable(services),
      `<h2>Beside the paper</h2>${notes(figures)}`,
    ].join("\n"),
  });
}

/** At the number of cores with the most batches. */
function batchChart(title: string, comparisons: readonly CodingComparison[]): string {
  const byCores = [...groupBy(comparisons, ({ cores }) => cores).entries()];
  const [cores, most] = byCores.reduce((a, b) => (b[1].length > a[1].length ? b : a));
  const points = most.toSorted((a, b) => a.batch - b.batch);
  const series: Series[] = [
    { name: "unit-aware", of: (c: CodingComparison) => c.unitAware.trajectory },
    { name: "paper", of: (c: CodingComparison) => c.paper.trajectory },
    { name: "best fixed", of: (c: CodingComparison) => bestFixed(c, "trajectory").value },
    { name: "fcfs-min", of: (c: CodingComparison) => c.fcfsMin.trajectory },
    ...(points[0]?.pods ?? []).map(({ rewardWorkers }, i) => ({
      name: `pods, ${rewardWorkers} at work`,
      of: (c: CodingComparison) => c.pods[i]?.figures.trajectory ?? Number.NaN,
    })),
  ].map(({ name, of }, i) => ({ name, colour: `var(--c${i % 8})`, values: points.map(of) }));
  return renderChart({
    title: `${title}, ${cores} cores`,
    xs: points.map(({ batch }) => batch),
    xName: "batch",
    unit: "s",
    series,
  });
}

function serviceTable(services: readonly ServiceComparison[]): string {
  const cells = (tag: string, values: readonly string[]): string =>
    `<tr>${values.map((value) => `<${tag}>${escapeHtml(value)}</${tag}>`).join("")}</tr>`;
  const rows = services.map(({ workload, dedicated, pooled, fewestGpus }) =>
    cells("td", [
      String(workload.batch),
      String(workload.skew),
      String(workload.taskSpread),
      `${workload.requestMedianSeconds} s`,
      `${workload.restoreSeconds} s`,
      String(workload.serverSlots),
      `${significant(dedicated.act)} s`,
      `${significant(pooled.act)} s`,
      fewestGpus === null
        ? `more than ${workload.models * workload.gpusPerModel}`
        : `${fewestGpus} of ${workload.models * workload.gpusPerModel}`,
    ]),
  );
  const header = [
    "batch",
    "skew",
    "pace",
    "request",
    "restore",
    "requests at once",
    "dedicated",
    "pooled",
    "GPUs for the same",
  ];
  return `<h2>Reward models on GPUs, ACT</h2><table>${cells("th", header)}${rows.join("")}</table>`;
}

function notes(figures: readonly PaperFigure[]): string {
  const rows = figures.map(
    ({ name, paper, here, why }) =>
      `<tr><td>${escapeHtml(name)}</td><td>${describePaper({ paper })}</td><td>${
        here === null ? "–" : `${significant(here[0])} to ${significant(here[2])}, median ${significant(here[1])}`
      }</td><td>${escapeHtml(why ?? "")}</td></tr>`,
  );
  return `<table><tr><th>ratio</th><th>ARL-Tangram</th><th>here</th><th>why it differs</th></tr>${rows.join("")}</table>`;
}

function groupBy<Item, Key>(items: readonly Item[], keyOf: (item: Item) => Key): Map<Key, Item[]> {
  const groups = new Map<Key, Item[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group === undefined) groups.set(keyOf(item), [item]);
    else group.push(item);
  }
  return groups;
}

export const describeWorkload = ({ workload }: CodingComparison): string => {
  const { turns, tools, rewardMedianSeconds, serialShare } = workload;
  const shares = serialShare.map((share) => formatPercent(share, 1)).join("–");
  return `${turns} turns, tools ${tools.meanSeconds} s, rewards ${rewardMedianSeconds} s, serial ${shares}`;
};

export const describePaper = ({ paper }: Pick<PaperFigure, "paper">): string =>
  paper === null ? "–" : [...new Set(paper)].map(significant).join(" to ");
