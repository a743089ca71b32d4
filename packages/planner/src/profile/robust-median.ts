import { median } from "@treadle/contracts";

/** What several measurements of one thing say of it. Pure. */
export type RobustMedian = {
  readonly median: number;
  /** median absolute deviation over the median */
  readonly spread: number;
  readonly accepted: number;
  readonly rejected: number;
};

/** A deviation of this many scaled median absolute deviations is an outlier; 1.4826 makes it a normal's sd. */
const outlierDeviations = 3;
const normalScale = 1.4826;
/** Differences below this share of the median are noise of the clock, not outliers. */
const smallestDeviation = 0.02;

/** The median of what is left when outliers are rejected. `values` is not empty. */
export function robustMedian(values: readonly number[]): RobustMedian {
  const centre = median(values);
  const deviation = median(values.map((value) => Math.abs(value - centre)));
  const limit = outlierDeviations * Math.max(normalScale * deviation, smallestDeviation * Math.abs(centre));
  const kept = values.filter((value) => Math.abs(value - centre) <= limit);
  const of = median(kept);
  const spread = of === 0 ? 0 : median(kept.map((value) => Math.abs(value - of))) / of;
  return { median: of, spread, accepted: kept.length, rejected: values.length - kept.length };
}
