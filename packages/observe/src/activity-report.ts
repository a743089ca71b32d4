import type { UtilisationShares } from "@treadle/contracts";
import { componentOf } from "@treadle/contracts";
import { readTrace } from "./trace-file.ts";
import { surveyTrace } from "./trace-survey.ts";
import { type Activity, activityOf, precedence } from "./utilisation.ts";

/** What the components of a finished run did, at a resolution that does not grow with the run. */
export type ActivityReport = {
  readonly seconds: number;
  readonly components: readonly string[];
  /** shares over the whole run */
  readonly overall: Readonly<Record<string, UtilisationShares>>;
  /** shares in each of equal stretches of the run */
  readonly overTime: Readonly<Record<string, readonly UtilisationShares[]>>;
  /** by step: seconds that an average rank of each component computed */
  readonly computeByStep: readonly { readonly step: number; readonly seconds: Readonly<Record<string, number>> }[];
};

/**
 * Reads traces of any length in bounded memory: time is cut into `numBins` stretches. Within one of them activities
 * count in the order of `utilisation`, and only as far as they fit, so overlaps shorter than a stretch are counted once.
 */
export async function reportActivity(files: readonly string[], numBins = 240): Promise<ActivityReport> {
  const { fromMs, toMs, workers, components } = await surveyTrace(files);
  const binMs = Math.max(1e-6, (toMs - fromMs) / numBins);
  const rows = new Map(workers.map((worker) => [worker, new Map<Activity, Float64Array>()]));
  const steps = new Map<number, Map<string, number>>();
  const numRanks = new Map<string, number>();
  for (const worker of workers) numRanks.set(componentOf(worker), (numRanks.get(componentOf(worker)) ?? 0) + 1);

  for await (const { worker, records } of readTrace(files)) {
    const component = componentOf(worker);
    for (const record of records) {
      if (record.kind !== "span") continue;
      const activity = activityOf[record.category];
      if (activity === undefined) continue;
      const row = rows.get(worker)!;
      let bins = row.get(activity);
      if (bins === undefined) {
        bins = new Float64Array(numBins);
        row.set(activity, bins);
      }
      spread(bins, (record.startMs - fromMs) / binMs, (record.startMs + record.durationMs - fromMs) / binMs);
      if (activity !== "compute" || record.step === undefined) continue;
      const seconds = steps.get(record.step) ?? new Map<string, number>();
      steps.set(record.step, seconds);
      const share = record.durationMs / 1000 / numRanks.get(component)!;
      seconds.set(component, (seconds.get(component) ?? 0) + share);
    }
  }

  const overTime: Record<string, UtilisationShares[]> = {};
  const overall: Record<string, UtilisationShares> = {};
  for (const component of components) {
    const ranks = workers.filter((worker) => componentOf(worker) === component).map((worker) => rows.get(worker)!);
    const stretches = Array.from({ length: numBins }, (_, bin) => mean(ranks.map((row) => sharesOf(row, bin))));
    overTime[component] = stretches;
    overall[component] = mean(stretches);
  }
  const computeByStep = [...steps]
    .sort(([a], [b]) => a - b)
    .map(([step, seconds]) => ({ step, seconds: Object.fromEntries(seconds) }));
  return { seconds: (toMs - fromMs) / 1000, components, overall, overTime, computeByStep };
}

/** Adds a stretch, in units of bins, to the bins that it touches. */
function spread(bins: Float64Array, from: number, to: number): void {
  const last = Math.min(bins.length - 1, Math.floor(to));
  for (let bin = Math.max(0, Math.floor(from)); bin <= last; bin++) {
    bins[bin] = bins[bin]! + Math.max(0, Math.min(bin + 1, to) - Math.max(bin, from));
  }
}

function sharesOf(row: ReadonlyMap<Activity, Float64Array>, bin: number): UtilisationShares {
  const shares = { compute: 0, transfer: 0, lockWait: 0, channelWait: 0, idle: 1 };
  for (const activity of precedence) {
    shares[activity] = Math.min(shares.idle, row.get(activity)?.[bin] ?? 0);
    shares.idle = Math.max(0, shares.idle - shares[activity]);
  }
  return shares;
}

function mean(list: readonly UtilisationShares[]): UtilisationShares {
  const sum = { compute: 0, transfer: 0, lockWait: 0, channelWait: 0, idle: 0 };
  for (const shares of list)
    for (const name of [...precedence, "idle"] as const) sum[name] += shares[name] / list.length;
  return sum;
}
