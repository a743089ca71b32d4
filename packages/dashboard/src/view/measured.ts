/** What the components took in the steps of a run, by its spans. Pure. */
import { categoryNumber, type SpanTable } from "./span-table.ts";

export type MeasuredComponent = { readonly compute: number; readonly wait: number };

const compute = categoryNumber("compute");
const waits = new Set([categoryNumber("lock-wait"), categoryNumber("channel-wait")]);

/** Seconds of a step on an average rank: the median over the last 200 steps. */
export function measuredByStep(table: SpanTable): Map<string, MeasuredComponent> {
  const ranks = new Map<string, number>();
  for (const worker of table.workers) ranks.set(componentOf(worker), (ranks.get(componentOf(worker)) ?? 0) + 1);
  const sums = new Map<string, Map<number, { compute: number; wait: number }>>();
  for (let row = 0; row < table.length; row++) {
    const step = table.step[row] as number;
    const category = table.category[row] as number;
    if (step < 0 || (category !== compute && !waits.has(category))) continue;
    const component = componentOf(table.workers[table.worker[row] as number] as string);
    const steps = sums.get(component) ?? new Map<number, { compute: number; wait: number }>();
    sums.set(component, steps);
    const sum = steps.get(step) ?? { compute: 0, wait: 0 };
    steps.set(step, sum);
    const seconds = (table.duration[row] as number) / 1000 / (ranks.get(component) ?? 1);
    if (category === compute) sum.compute += seconds;
    else sum.wait += seconds;
  }
  return new Map(
    [...sums].map(([component, steps]) => {
      const last = [...steps].sort(([a], [b]) => b - a).slice(0, 200);
      const of = (category: "compute" | "wait") => middle(last.map(([, sum]) => sum[category])) ?? 0;
      return [component, { compute: of("compute"), wait: of("wait") }];
    }),
  );
}

/** Of the last 20 steps; undefined before the first has ended. */
export function medianStep(metrics: readonly { readonly [name: string]: number }[]): number | undefined {
  const seconds = metrics.flatMap(({ seconds: each }) => (each !== undefined && Number.isFinite(each) ? [each] : []));
  return middle(seconds.slice(-20));
}

/** The upper one of two; undefined of nothing. */
function middle(values: readonly number[]): number | undefined {
  return values.toSorted((a, b) => a - b)[values.length >> 1];
}

const componentOf = (worker: string): string => worker.replace(/\/[^/]*$/, "");
