/** What became of runs that shared devices, as a table. */
import type { Multiplexed } from "../multiplex/multiplex.ts";
import { markdownTable } from "./markdown-table.ts";
import { slowdownTable } from "./slowdown-table.ts";
import { formatPercent, formatSeconds, singleLine } from "./text.ts";

const columns = [
  "run",
  "outcome",
  "steps",
  "seconds",
  "had devices",
  "of all",
  "waited",
  "lost",
  "queued",
  "leases",
  "slowdown",
];

export function multiplexTable({
  seconds,
  leasedSeconds,
  serialSeconds,
  runs,
  slowdowns,
  history,
}: Multiplexed): string {
  const rows = runs.map((run) => [
    run.name,
    run.outcome,
    run.summary === undefined ? "–" : String(run.summary.steps),
    formatSeconds(run.seconds),
    formatSeconds(run.leasedSeconds),
    formatPercent(seconds > 0 ? run.leasedSeconds / seconds : 0, 0),
    formatSeconds(run.waitedSeconds),
    formatSeconds(run.lostSeconds),
    formatSeconds(run.queuedSeconds),
    String(run.leases),
    run.slowdown === undefined ? "–" : run.slowdown.toFixed(2),
  ]);
  const lost = runs.flatMap(({ name, why }) => (why === undefined ? [] : [`${name}: ${singleLine(why)}`]));
  const all = `all runs took ${formatSeconds(seconds)}; they had devices for ${formatSeconds(leasedSeconds)} in all`;
  const serial = `one after the other, they would have taken about ${formatSeconds(serialSeconds)}, ${(serialSeconds / seconds).toFixed(2)} times as long if they took nothing else from each other`;
  const measured = slowdowns.length === 0 ? [] : ["", slowdownTable(slowdowns)];
  const page = `which run had which devices, who waited for whom, and why: npx treadle trace --pool ${history}`;
  return [markdownTable(columns, rows), "", all, serial, ...lost, ...measured, "", page].join("\n");
}
