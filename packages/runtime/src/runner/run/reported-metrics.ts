/** What a workflow reports, before it counts: every metric is a number, or the run says which one is not. */
import { TreadleError } from "@treadle/contracts";
import type { Metrics } from "../../author/workflow.ts";

/** Throws `workflow.invalid` for what is no number, which would be drawn, averaged and compared as if it were one. */
export function checkedMetrics(metrics: unknown, from: string): Metrics {
  if (typeof metrics !== "object" || metrics === null || Array.isArray(metrics)) {
    throw invalid(`${from} is ${shown(metrics)}, and an object of numbers was expected; return { reward: 0.5 }, say`);
  }
  for (const [name, value] of Object.entries(metrics)) {
    if (typeof value === "number") continue;
    throw invalid(
      `metric '${name}' of ${from} is ${shown(value)}, and a number was expected; convert it with Number(…)`,
    );
  }
  return metrics as Metrics;
}

/** The mean over the ranks that have each metric. */
export function averageRanks(perRank: readonly unknown[], from: string): Record<string, number> {
  const checked = perRank.map((metrics) => checkedMetrics(metrics, from));
  const names = new Set(checked.flatMap((metrics) => Object.keys(metrics)));
  return Object.fromEntries(
    [...names].map((name) => {
      const values = checked.map((metrics) => metrics[name]).filter((value) => value !== undefined);
      return [name, values.reduce((sum, value) => sum + value, 0) / values.length];
    }),
  );
}

const invalid = (message: string) => new TreadleError("workflow.invalid", message);

function shown(value: unknown): string {
  if (value === undefined) return "nothing";
  return `'${typeof value === "string" ? value : (JSON.stringify(value) ?? String(value))}' (${typeof value})`;
}
