/** A finished run as one self-contained page, read from its folder. */
import { existsSync } from "node:fs";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import {
  type CutCause,
  EpisodeRecording,
  Plan,
  RunSummary,
  recordingFolder,
  type UtilisationShares,
} from "@treadle/contracts";
import { type ActivityReport, type MetricsRow, readMetrics, redactSecrets, reportActivity } from "@treadle/observe";
import { stringify } from "yaml";
import { z } from "zod";
import { CompletionReader } from "../data/completion-reader.ts";
import { type CutPrompts, readCutPrompts } from "../data/cut-prompts.ts";
import { TraceReader } from "../data/trace-reader.ts";
import { colourSlots, numColours } from "../view/colours.ts";
import type { EpisodeLine } from "../view/episodes.ts";
import { deviceRange, formatCount, formatPercent, formatSeconds, significant } from "../view/format.ts";
import { type TimerTotal, timerTotals } from "../view/timers.ts";
import { renderChart, smooth, thin } from "./chart.ts";
import { movingEpisode, stillsOf, viewOf } from "./episode-drawing.ts";
import { escapeHtml } from "./html.ts";
import { reportPage } from "./report-page.ts";

/** What a run's folder tells; what the run did not come to write is absent. */
export type RunRecord = {
  readonly runId: string;
  readonly folder: string;
  readonly workflow: string;
  readonly rows: readonly MetricsRow[];
  readonly summary: RunSummary | undefined;
  readonly plan: Plan | undefined;
  readonly config: unknown;
  readonly activity: ActivityReport | undefined;
  /** recorded episodes of a simulator, in the order of steps */
  readonly episodes: readonly EpisodeRecording[];
  /** episodes of text that were left for people */
  readonly completions: readonly EpisodeLine[];
  readonly timers: readonly TimerTotal[];
  readonly cut: readonly CutPrompts[];
};

const StoredConfig = z.object({ workflow: z.string(), config: z.unknown() });

export async function readRun(folder: string): Promise<RunRecord> {
  const parsed = async <Shape>(name: string, schema: z.ZodType<Shape>): Promise<Shape | undefined> => {
    const text = await readFile(join(folder, name), "utf8").catch(() => undefined);
    if (text === undefined) return undefined;
    try {
      return schema.safeParse(JSON.parse(text)).data;
    } catch {
      return undefined; // torn, as by a full disk
    }
  };
  const [summary, plan, stored] = await Promise.all([
    parsed("summary.json", RunSummary),
    parsed("plan.json", Plan),
    parsed("config.json", StoredConfig),
  ]);
  const episodeFolder = join("artifacts", recordingFolder);
  const names = await readdir(join(folder, episodeFolder)).catch(() => []);
  const episodes = await Promise.all(names.sort().map((name) => parsed(join(episodeFolder, name), EpisodeRecording)));
  const metrics = join(folder, "metrics.jsonl");
  const trace = join(folder, "trace.jsonl");
  const completions = new CompletionReader(folder);
  await completions.refresh();
  const spans = new TraceReader(trace);
  await spans.read();
  return {
    runId: basename(folder),
    folder,
    workflow: stored ? basename(stored.workflow) : "run",
    rows: existsSync(metrics) ? readMetrics(metrics) : [],
    summary,
    plan,
    config: stored?.config,
    activity: existsSync(trace) ? await reportActivity([trace]) : undefined,
    episodes: episodes.filter((each) => each !== undefined),
    completions: completions.lines,
    timers: timerTotals(spans.table),
    cut: await readCutPrompts(join(folder, "journal.jsonl")),
  };
}

export async function writeReport(folder: string, outputPath: string): Promise<void> {
  await writeFile(outputPath, renderReport(await readRun(folder)));
}

export function renderReport(run: RunRecord): string {
  const sections = [
    section("Learning", learning(run)),
    section("What the policy writes", completions(run.completions)),
    section("Prompts that no step trained", cutPrompts(run.cut)),
    section("Episodes without exploration", episodes(run.episodes)),
    section("Time of a step", stepTime(run)),
    section("What each component did", utilisation(run.activity)),
    section("What its timers measured", timers(run.timers)),
    section("Plan", plan(run.plan)),
    section("Configuration", configuration(run.config)),
  ];
  return reportPage({
    title: `${run.workflow} ${run.runId}`,
    heading: run.workflow,
    facts: [
      run.runId,
      run.summary?.mode ?? run.plan?.mode ?? "",
      run.summary ? `finished in ${formatSeconds(run.summary.seconds)}` : "not finished",
    ],
    tiles: tiles(run),
    body: sections.join("\n"),
  });
}

const section = (title: string, body: string) => (body === "" ? "" : `<section><h2>${title}</h2>\n${body}\n</section>`);
const grid = (figures: readonly string[]) =>
  figures.length === 0 ? "" : `<div class="charts">${figures.join("\n")}</div>`;

function tiles({ summary, rows }: RunRecord): { name: string; value: string; note: string }[] {
  const list: { name: string; value: string; note: string }[] = [];
  if (summary && summary.evalAfter !== null) {
    list.push({ name: "accuracy", value: formatPercent(summary.evalAfter), note: accuracyBefore(summary) });
  }
  if (summary && summary.rewardLast !== null) {
    const first = summary.rewardFirst === null ? "" : `from ${significant(summary.rewardFirst)}`;
    list.push({ name: "reward", value: significant(summary.rewardLast), note: first });
  }
  list.push({
    name: "steps",
    value: String(summary?.steps ?? rows.length),
    note: summary ? `policy version ${summary.policyVersion}` : "",
  });
  if (summary) {
    const { mean, p50, p95 } = summary.stepSeconds;
    list.push({
      name: "a step",
      value: formatSeconds(p50),
      note: `mean ${formatSeconds(mean)}, 95 % within ${formatSeconds(p95)}`,
    });
    if (summary.tokensPerSecond > 0)
      list.push({ name: "tokens/s", value: formatCount(summary.tokensPerSecond), note: "over all steps" });
    list.push({
      name: "restarts",
      value: String(summary.restarts),
      note: summary.restarts === 0 ? "no worker died" : "workers started again",
    });
  }
  return list;
}

/** What came before the first step, such as imitation, is not what the steps have taught. */
function accuracyBefore({ evalBefore, evalAtStart }: RunSummary): string {
  if (evalBefore === null) return "";
  const wasPrepared = evalAtStart !== null && evalAtStart !== evalBefore;
  if (!wasPrepared) return `from ${formatPercent(evalBefore)}`;
  return `untrained ${formatPercent(evalBefore)}, ${formatPercent(evalAtStart)} before the first step`;
}

const maxPoints = 500;
/** drawn elsewhere, or counts that only grow */
const notCurves = new Set(["step", "seconds", "reward", "accuracy", "policyVersion"]);

function learning({ rows, summary }: RunRecord): string {
  const figures: string[] = [];
  const constants: string[] = [];
  const curve = (name: string, title: string, colour: string, percent = false, before?: number | null) => {
    const present = rows.filter((row) => row[name] !== undefined);
    const xs = present.map(({ step }) => step);
    const values = present.map((row) => row[name]!);
    if (before !== undefined && before !== null && xs[0] !== 0) {
      xs.unshift(0);
      values.unshift(before);
    }
    const known = values.filter(Number.isFinite);
    if (known.length < 2) return;
    if (known.every((value) => value === known[0])) {
      constants.push(`${title} ${significant(known[0]!)}`);
      return;
    }
    const points = thin(xs, values, maxPoints);
    const isLong = points.values.length > 40;
    const drawn = isLong ? smooth(points.values) : points.values;
    figures.push(
      renderChart({
        title,
        xs: points.xs,
        xName: "step",
        series: [{ name: title, colour, values: drawn }],
        ...(isLong ? { raw: [points.values] } : {}),
        percent,
      }),
    );
  };
  curve("reward", "reward", "var(--c2)");
  curve("accuracy", "accuracy", "var(--c0)", true, summary?.evalAtStart);
  const others = new Set(rows.flatMap((row) => Object.keys(row)).filter((name) => !notCurves.has(name)));
  for (const name of [...others].slice(0, 10)) curve(name, name, "var(--c7)");
  const unchanged = constants.length === 0 ? "" : `<p>unchanged throughout: ${escapeHtml(constants.join(", "))}</p>`;
  return grid(figures) + unchanged;
}

function stepTime({ rows, activity }: RunRecord): string {
  const figures: string[] = [];
  if (rows.length > 1) {
    const points = thin(
      rows.map(({ step }) => step),
      rows.map((row) => row.seconds ?? Number.NaN),
      maxPoints,
    );
    const series = [{ name: "seconds", colour: "var(--c0)", values: points.values }];
    figures.push(
      renderChart({
        title: "wall time",
        xs: points.xs,
        xName: "step",
        series,
        unit: "s",
        yDomain: zeroBased(points.values),
      }),
    );
  }
  const steps = activity?.computeByStep ?? [];
  if (activity && steps.length > 1) {
    const names = activity.components.filter((name) => steps.some(({ seconds }) => (seconds[name] ?? 0) > 0));
    const xs = steps.map(({ step }) => step);
    const series = names.map((name) => ({
      name,
      colour: componentColour(activity, name),
      values: thin(
        xs,
        steps.map(({ seconds }) => seconds[name] ?? 0),
        maxPoints,
      ).values,
    }));
    const title = "computing, by component";
    if (series.length > 0) {
      figures.push(
        renderChart({ title, xs: thin(xs, xs, maxPoints).xs, xName: "step", series, stacked: true, unit: "s" }),
      );
    }
  }
  return grid(figures);
}

/** The first, one from the middle and the last that were recorded, and the last once more frame by frame. */
function episodes(recorded: readonly EpisodeRecording[]): string {
  const drawable = recorded.filter(({ frames }) => frames.length > 0);
  const last = drawable.at(-1);
  if (!last) return "";
  const chosen = [...new Set([0, (drawable.length - 1) >> 1, drawable.length - 1])].map((at) => drawable[at] ?? last);
  const view = viewOf(chosen);
  const moving = chosen.map((recording) => movingEpisode(recording, view));
  return `<p class="about">Side views in real time; a click halts one. Below, the last of them frame by frame.</p>
<div class="episodes">${moving.join("")}</div>${stillsOf(last, view)}`;
}

const maxOfStep = 8;

/** Some of the first step that was sampled, and of the last. */
function completions(lines: readonly EpisodeLine[]): string {
  if (lines.length === 0) return "";
  const steps = lines.map(({ step }) => step);
  const chosen = [...new Set([Math.min(...steps), Math.max(...steps)])];
  const rows = chosen.flatMap((step) => lines.filter((line) => line.step === step).slice(0, maxOfStep));
  const cells = rows.map(({ step, prompt, text, reward, length }) => [
    String(step),
    prompt,
    text,
    significant(reward),
    String(length),
  ]);
  return `<p class="about">A few of the first step that was sampled, and of the last; the dashboard has them token by token.</p>
${tableOf(["step", "prompt", "what followed", "reward", "tokens"], cells)}`;
}

const maxTimers = 40;

/** Of a worker's own, too: `using _ = this.timer("score")`. */
function timers(totals: readonly TimerTotal[]): string {
  if (totals.length === 0) return "";
  const cells = totals
    .slice(0, maxTimers)
    .map(({ component, name, times, seconds }) => [
      component,
      name,
      formatCount(times),
      formatSeconds(seconds),
      formatSeconds(seconds / times),
    ]);
  return tableOf(["component", "timer", "times", "in all, over all ranks", "mean"], cells);
}

function cutPrompts(cut: readonly CutPrompts[]): string {
  if (cut.length === 0) return "";
  const cells = cut.map(({ cause, ids, steps }) => [
    causes[cause] ?? cause,
    formatCount(ids.length),
    formatCount(steps),
    `${ids.slice(0, 3).join(", ")}${ids.length > 3 ? ", …" : ""}`,
  ]);
  return tableOf(["cause", "prompts", "in so many steps", "such as"], cells);
}

/** As they are told to people; a workflow may have others. */
const causes: Readonly<Record<string, string>> = {
  late: "the step had enough groups before (rollout.tail: cut)",
  alike: "its samples were all rewarded alike, and another took its place (rollout.resample)",
} satisfies Record<CutCause, string>;

const tableOf = (heads: readonly string[], rows: readonly (readonly string[])[]): string =>
  `<table><thead><tr>${heads.map((head) => `<th>${head}</th>`).join("")}</tr></thead><tbody>${rows
    .map((cells) => `<tr>${cells.map((cell) => `<td>${escapeHtml(cell)}</td>`).join("")}</tr>`)
    .join("")}</tbody></table>`;

const zeroBased = (values: readonly number[]): [number, number] => [
  0,
  1.05 * Math.max(1e-9, ...values.filter(Number.isFinite)),
];

const componentColour = ({ components }: ActivityReport, name: string) =>
  `var(--c${colourSlots(components).get(name) ?? numColours - 1})`;

const activities: readonly { key: keyof UtilisationShares; name: string; colour: string }[] = [
  { key: "compute", name: "compute", colour: "var(--compute)" },
  { key: "transfer", name: "transfer", colour: "var(--transfer)" },
  { key: "lockWait", name: "waits for a device", colour: "var(--lock-wait)" },
  { key: "channelWait", name: "waits for data", colour: "var(--channel-wait)" },
  { key: "idle", name: "idle", colour: "var(--idle)" },
];

function utilisation(activity: ActivityReport | undefined): string {
  if (!activity) return "";
  const busy = activity.components.filter((name) => activity.overall[name]!.idle < 0.999);
  if (busy.length === 0) return "";
  const legend = activities
    .map(({ name, colour }) => `<span><i style="background:${colour}"></i>${name}</span>`)
    .join("");
  const bars = busy.map((component) => {
    const shares = activity.overall[component]!;
    const parts = activities.map(({ key, name, colour }) => {
      const percent = shares[key] * 100;
      return `<div style="width:${percent.toFixed(2)}%;background:${colour}" title="${name} ${percent.toFixed(1)} %">${percent >= 7 ? `${Math.round(percent)} %` : ""}</div>`;
    });
    return `<div class="share"><b>${escapeHtml(component)}</b><div class="bar">${parts.join("")}</div></div>`;
  });
  // Points no closer than two steps, else the chart shows the beat of steps against points.
  const numSteps = activity.computeByStep.length;
  const numPoints = numSteps < 12 ? maxPoints : Math.max(24, Math.floor(numSteps / 2));
  const centres = (activity.overTime[busy[0]!] ?? []).map((_, i, all) => ((i + 0.5) / all.length) * activity.seconds);
  const xs = thin(centres, centres, numPoints).values;
  const charts = busy.slice(0, 8).map((component) =>
    renderChart({
      title: `${component} over time`,
      xs,
      xName: "s",
      stacked: true,
      percent: true,
      yDomain: [0, 1],
      height: 150,
      legend: false,
      series: activities.slice(0, 4).map(({ key, name, colour }) => ({
        name,
        colour,
        values: thin(
          centres,
          activity.overTime[component]!.map((shares) => shares[key]),
          numPoints,
        ).values,
      })),
    }),
  );
  return `<p class="legend">${legend}</p>\n${bars.join("\n")}\n${grid(charts)}`;
}

function plan(value: Plan | undefined): string {
  if (!value) return "";
  const { channels } = value.granularity;
  const rows = Object.entries(value.components).map(([component, { ranks }]) => {
    const devices = [...new Set(ranks.flatMap((rank) => rank.devices))];
    const nodes = [...new Set(ranks.map((rank) => rank.node))];
    const shares = value.sharing.find((each) => each.components.includes(component));
    const partners = shares?.components.filter((name) => name !== component) ?? [];
    const cells = [
      component,
      String(ranks.length),
      deviceRange(devices),
      nodes.join(" "),
      partners.length > 0 ? `in turn with ${partners.join(", ")}` : devices.length > 0 ? "its own" : "",
    ];
    return `<tr>${cells.map((cell) => `<td>${escapeHtml(cell)}</td>`).join("")}</tr>`;
  });
  const chunks = Object.entries(channels).map(([channel, items]) => `${channel} ${items}`);
  const text = [
    `Granularity ${value.granularity.default}${chunks.length > 0 ? ` (${chunks.join(", ")})` : ""}; staleness at most ${value.maxStaleness}.`,
    ...value.explanation,
  ];
  return `<table><thead><tr><th>component</th><th>ranks</th><th>devices</th><th>node</th><th>devices are</th></tr></thead><tbody>${rows.join("")}</tbody></table>
${text.map((line) => `<p>${escapeHtml(line)}</p>`).join("\n")}`;
}

function configuration(config: unknown): string {
  if (config === undefined) return "";
  const text = stringify(JSON.parse(redactSecrets(JSON.stringify(config))));
  return `<details><summary>resolved values</summary><pre>${escapeHtml(text)}</pre></details>`;
}
