/** An action service's statistics as a frame of the live view, and as plain lines. */
import type { ServiceStatistics } from "@treadle/actions/serve";
import pc from "picocolors";
import type { Frame } from "./live-frame.ts";
import { sparkline } from "./plot.ts";
import {
  fit,
  formatClock,
  formatCount,
  formatPercent,
  formatSeconds,
  gibibytes,
  padCells,
  plural,
  significant,
  singleLine,
} from "./text.ts";

const kindWidths = [22, 8, 8, 11, 10, 10, 11, 10, 9];
const kindHeader = ["kind", "done", "failed", "cancelled", "ACT", "queueing", "execution", "overhead", "longest"];

/** At most `rows` lines: kinds, their curves and resources first, then as many of the last grants as fit. */
export function renderActionFrame(address: string, statistics: ServiceStatistics, frame: Frame): string[] {
  const c = pc.createColors(frame.colour);
  const { started } = statistics;
  const lines = [
    `${c.bold(c.magenta("treadle"))}  ${c.bold("actions")} at ${address}  ${c.cyan(singleLine(statistics.policy))}  ${c.dim(`up ${formatClock(statistics.uptimeSeconds)}`)}${statistics.draining ? c.yellow("  ends soon") : ""}`,
    load(statistics),
    "",
    c.dim(cells(kindHeader)),
    ...kindRows(statistics).map(cells),
    ...curveRows(statistics).map((line) => c.dim(line)),
    "",
    ...Object.entries(statistics.resources).map(([name, usage]) => {
      const points = usage.timeline.map((value, step) => ({ step, value }));
      const share = usage.units > 0 ? usage.held / usage.units : 0;
      return `${padCells(singleLine(name), 14)}${padCells(`${formatCount(usage.held)} of ${formatCount(usage.units)}`, 14)}${padCells(formatPercent(share, 0), 7)}${c.cyan(sparkline(points, Math.max(10, Math.min(60, frame.columns - 40)), { low: 0, high: usage.units }))}`;
    }),
    ...Object.entries(statistics.hosts).map(([name, host]) => {
      const line = hostLine(name, host);
      return host.away === "" ? line : c.yellow(line);
    }),
    ...statistics.restores.map(restoreLine),
    "",
    ...(started.length > 0 ? [c.dim("last decisions")] : []),
    ...started.map((start) => decision(start, c.dim)),
  ];
  return lines.slice(0, frame.rows).map((line) => fit(line, frame.columns));
}

const printedDecisions = 5;

/** The same as lines for a pipe: one for the load, one a kind and a curve, one a resource, and the last decisions. */
export function actionLines(statistics: ServiceStatistics): string[] {
  return [
    load(statistics),
    ...kindRows(statistics).map(
      ([kind, done, failed, cancelled, act, queueing, execution, overhead, longest]) =>
        `  ${kind}: ${done} done, ${failed} failed, ${cancelled} cancelled; ACT ${act} = queueing ${queueing} + execution ${execution} + overhead ${overhead}, longest ${longest}`,
    ),
    ...curveRows(statistics).map((line) => `  ${line}`),
    ...Object.entries(statistics.resources).map(([name, { held, units, timeline, heldSeconds }]) => {
      const recent = timeline.slice(-60);
      const mean = recent.reduce((sum, value) => sum + value, 0) / Math.max(1, recent.length);
      const busy = units > 0 ? formatPercent(mean / units, 0) : "–";
      return `  ${singleLine(name)}: ${formatCount(held)} of ${formatCount(units)} held, ${busy} over the last ${plural(recent.length, "second")}, ${significant(heldSeconds)} unit-seconds in all`;
    }),
    ...Object.entries(statistics.hosts).map(([name, host]) => `  ${hostLine(name, host)}`),
    ...statistics.restores.map((restore) => `  ${restoreLine(restore)}`),
    ...statistics.started.slice(0, printedDecisions).map((start) => `  ${decision(start, (text) => text)}`),
  ];
}

function hostLine(
  name: string,
  { cores, held, memoryBytes, reservedBytes, away }: ServiceStatistics["hosts"][string],
): string {
  const host = `host ${padCells(singleLine(name), 8)}`;
  if (away !== "") return `${host} is away: ${singleLine(away)}`;
  return `${host} ${formatCount(held)} of ${formatCount(cores)} cores held, ${gibibytes(reservedBytes)} of ${gibibytes(memoryBytes)} reserved`;
}

function restoreLine({ service, devices, startSeconds, wakeSeconds }: ServiceStatistics["restores"][number]): string {
  const ways = { starts: startSeconds, wakes: wakeSeconds };
  const known = Object.entries(ways).flatMap(([way, seconds]) =>
    seconds === null ? [] : `${way} in ${formatSeconds(seconds)}`,
  );
  return `service ${padCells(singleLine(service), 8)} on ${plural(devices, "device")}: ${known.join(", ")}`;
}

function load({ waiting, running, trajectories, tenants }: ServiceStatistics): string {
  const shares = Object.entries(tenants).map(([name, t]) => `${singleLine(name)} ${t.running}+${t.waiting}`);
  const of = shares.length > 0 ? ` (${shares.join(", ")})` : "";
  return `${running} running, ${waiting} waiting${of}, ${plural(trajectories, "trajectory").replace("trajectorys", "trajectories")} open`;
}

/** By share of all completion time, the largest first. */
function kindRows({ kinds }: ServiceStatistics): string[][] {
  return Object.entries(kinds)
    .toSorted(([, a], [, b]) => b.actSeconds * b.completed - a.actSeconds * a.completed)
    .map(([kind, k]) => [
      singleLine(kind),
      formatCount(k.completed),
      formatCount(k.failed),
      formatCount(k.cancelled),
      ...[k.actSeconds, k.queueingSeconds, k.executionSeconds, k.overheadSeconds, k.longestActSeconds].map((seconds) =>
        k.completed > 0 ? formatSeconds(seconds) : "–",
      ),
    ]);
}

/** What is expected of the kinds that scale: `pytest: E(m) measured, 1.00 at 1, 0.91 at 2; 12.0 s on one unit; predictions 8 % off`. */
function curveRows({ kinds }: ServiceStatistics): string[] {
  return Object.entries(kinds).flatMap(([kind, { curve, expectedSeconds, predictionError }]) => {
    if (curve === null) return [];
    const points = curve.efficiency.map(({ units, efficiency }) => `${significant(efficiency)} at ${units}`);
    const parts = [
      ["E(m)", [singleLine(curve.source), ...points].join(", ")].join(" "),
      ...(expectedSeconds === null ? [] : [`${formatSeconds(expectedSeconds)} on one unit`]),
      ...(predictionError === null ? [] : [`predictions ${formatPercent(predictionError, 0)} off`]),
    ];
    return [`${singleLine(kind)}: ${parts.join("; ")}`];
  });
}

const cells = (row: readonly string[]): string =>
  row
    .map((cell, i) => padCells(fit(cell, kindWidths[i]! - 1), kindWidths[i]!))
    .join("")
    .trimEnd();

function decision(start: ServiceStatistics["started"][number], dim: (text: string) => string): string {
  const units = Object.entries(start.units).map(
    ([resource, amount]) => `${formatCount(amount)} ${singleLine(resource)}`,
  );
  const expected = start.expectedSeconds === null ? "" : `, ${formatSeconds(start.expectedSeconds)} expected`;
  return `${dim(padCells(`${formatClock(start.secondsAgo)} ago`, 10))}${padCells(fit(singleLine(start.kind), 18), 18)} ${units.join(", ")} after ${formatSeconds(start.waitedSeconds)}${expected}  ${dim(singleLine(start.why))}`;
}
