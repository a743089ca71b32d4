/** What the timers of workers have measured in all, a worker's own included. Pure. */
import { categoryNumber, type SpanTable } from "./span-table.ts";

export type TimerTotal = {
  readonly component: string;
  readonly name: string;
  readonly times: number;
  /** over all ranks */
  readonly seconds: number;
};

const compute = categoryNumber("compute");

/** The longest in all first. */
export function timerTotals(table: SpanTable): TimerTotal[] {
  const totals = new Map<string, { component: string; name: string; times: number; seconds: number }>();
  for (let row = 0; row < table.length; row++) {
    if (table.category[row] !== compute) continue;
    const worker = table.workers[table.worker[row] as number] as string;
    const component = worker.replace(/\/[^/]*$/, "");
    const name = table.names[table.name[row] as number] as string;
    const key = JSON.stringify([component, name]);
    const total = totals.get(key) ?? { component, name, times: 0, seconds: 0 };
    totals.set(key, total);
    total.times++;
    total.seconds += (table.duration[row] as number) / 1000;
  }
  return [...totals.values()].sort((a, b) => b.seconds - a.seconds);
}
