/** Runs that share devices in a pool, at one instant, as a table. */
import { describePoolWait, type PoolInfo, type PoolStatus } from "@treadle/contracts";
import { deviceRange } from "@treadle/dashboard/view";
import { markdownTable } from "./markdown-table.ts";
import { slowdownTable } from "./slowdown-table.ts";
import { formatSeconds, printableLines } from "./text.ts";

const columns = ["run", "stage", "has", "waits for", "had devices", "waited", "lost", "queued", "leases", "slowdown"];
const none = "–";

export type ShownPool = PoolInfo & PoolStatus & { readonly name: string };

/** What it says comes from afar. */
export const poolTable = (pool: ShownPool): string => printableLines(tableOf(pool));

function tableOf({ name, host, pid, startedAt, runs, slowdowns = [] }: ShownPool): string {
  const head = `pool '${name}' of '${host}', process ${pid} since ${startedAt}: `;
  if (runs.length === 0) return `${head}no runs`;
  const rows = runs.map(({ run, stage, holds, waits, leasedMs, waitedMs, lostMs, queuedMs, leases, slowdown }) => [
    run,
    stage,
    holds === undefined ? none : `${deviceRange(holds.devices)} for ${formatSeconds(holds.forMs / 1000)}`,
    waits === undefined ? none : `${describePoolWait(waits.on)}, ${formatSeconds(waits.forMs / 1000)}`,
    ...[leasedMs, waitedMs, lostMs, queuedMs].map((ms) => formatSeconds(ms / 1000)),
    String(leases),
    slowdown === undefined ? none : slowdown.toFixed(2),
  ]);
  const measured = slowdowns.length === 0 ? "" : `\n\n${slowdownTable(slowdowns)}`;
  return `${head}${runs.length} runs\n\n${markdownTable(columns, rows)}${measured}`;
}
