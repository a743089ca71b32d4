/** What is said when a run has ended. */

import type { RunSummary } from "@treadle/contracts";
import type { RunState } from "@treadle/dashboard/view";
import { drawnPoints } from "@treadle/dashboard/view";
import pc from "picocolors";
import { sparkline } from "./plot.ts";
import { formatCount, formatPercent, formatSeconds, significant } from "./text.ts";

export type SummaryOptions = {
  readonly colour: boolean;
  readonly next?: readonly string[];
  /** the folder of the runs where it is not the default one, which commands have to be told then */
  readonly runs?: string | undefined;
  /** other tools could load its model */
  readonly isExportable?: boolean;
};

export function renderSummary(state: RunState, options: SummaryOptions): string {
  const c = pc.createColors(options.colour);
  const { summary } = state;
  if (!summary) return `run ${state.runId} has no summary: it did not come to an end`;
  const { steps, seconds, rewardFirst, rewardLast, tokensPerSecond, stepSeconds, restarts } = summary;
  const rows: [string, string][] = [];
  const accuracy = renderAccuracy(summary, c);
  if (accuracy !== undefined) rows.push(["accuracy", accuracy]);
  if (rewardFirst !== null && rewardLast !== null) {
    const curve = c.dim(sparkline(drawnPoints(state.reward), 24));
    const text = change(significant(rewardFirst), significant(rewardLast), rewardLast - rewardFirst, c);
    rows.push(["reward", `${text}  ${curve}`]);
  }
  if (tokensPerSecond > 0) rows.push(["tokens/s", formatCount(tokensPerSecond)]);
  const { mean, p50, p95 } = stepSeconds;
  if (steps > 0) {
    rows.push(["step", `mean ${formatSeconds(mean)}, median ${formatSeconds(p50)}, 95 % within ${formatSeconds(p95)}`]);
  }
  if (summary.policyVersion > 0) rows.push(["policy", `version ${summary.policyVersion}`]);
  rows.push(["restarts", restarts === 0 ? "none" : c.yellow(String(restarts))]);
  if (state.checkpoint) rows.push(["checkpoint", `step ${state.checkpoint.step}, ${state.checkpoint.path}`]);
  rows.push(["files", state.folder]);

  const wasCut = state.numSteps > steps;
  const done = wasCut
    ? `${c.yellow("stopped")} after step ${steps} of ${state.numSteps}`
    : `${c.green("finished")} ${steps} steps`;
  const next = options.next ?? nextCommands(state, wasCut, options);
  return [
    "",
    `${c.bold(state.workflow)} ${done} in ${formatSeconds(seconds)}${summary.mode ? `, ${summary.mode}` : ""}`,
    "",
    ...rows.map(([name, text]) => `  ${c.dim(name.padEnd(11))} ${text}`),
    "",
    c.dim("next"),
    ...next.map((line) => `  ${line}`),
  ].join("\n");
}

/** What was known untrained, before the first step and at the end; none where it was not measured. */
export function renderAccuracy(
  { evalBefore, evalAtStart, evalAfter }: RunSummary,
  c: ReturnType<typeof pc.createColors>,
): string | undefined {
  if (evalBefore === null || evalAfter === null) return undefined;
  // What came before the first step, such as imitation, is not what the steps have taught.
  const wasPrepared = evalAtStart !== null && evalAtStart !== evalBefore;
  const first = wasPrepared ? evalAtStart : evalBefore;
  const text = change(formatPercent(first), formatPercent(evalAfter), evalAfter - first, c);
  return wasPrepared ? `untrained ${formatPercent(evalBefore)}; before the first step and at the end ${text}` : text;
}

function nextCommands(state: RunState, wasCut: boolean, { runs, isExportable }: SummaryOptions): string[] {
  const of = runs === undefined ? "" : ` --runs ${runs}`;
  const run = `${state.runId}${of}`;
  const commands: [string, string][] = [];
  if (wasCut) commands.push([`treadle resume ${run}`, "goes on after the last step"]);
  commands.push([`treadle dashboard${of}`, "all runs in a browser: curves, episodes, logs"]);
  commands.push([`treadle report ${run}`, "this run as one page"]);
  commands.push([`treadle trace ${run}`, "where the time went"]);
  if (isExportable && state.checkpoint)
    commands.push([`treadle export ${run} --to model`, "the model as a folder that other tools load"]);
  if (!wasCut) commands.push([`treadle resume ${run} --set steps=${state.numSteps * 2}`, "trains longer"]);
  const width = Math.max(...commands.map(([command]) => command.length));
  return commands.map(([command, purpose]) => `${command.padEnd(width)}  ${purpose}`);
}

function change(before: string, after: string, difference: number, c: ReturnType<typeof pc.createColors>): string {
  const paint = difference > 0 ? c.green : difference < 0 ? c.red : c.dim;
  return `${before} ${c.dim("→")} ${paint(c.bold(after))}`;
}
