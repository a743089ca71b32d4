import { mean, median } from "@treadle/contracts";

/** What several measurements of one thing say of it. Pure. */
export type RobustMean = {
  readonly mean: number;
  /** median absolute deviation over the median */
  readonly spread: number;
  readonly accepted: number;
  readonly rejected: number;
};

/** A deviation of this many scaled median absolute deviations is an outlier; 1.4826 makes it a normal's sd. */
const outlierDeviations = 3;
const normalScale = 1.4826;
/** Of few values the median deviation may be small by chance: below this share of the median none is an outlier. */
const leastOutlier = 0.25;

/**
 * The mean of what is left when outliers are rejected: of steps that differ it is means that add up, over components and over a
 * run. `values` is not empty.
 */
export function robustMean(values: readonly number[]): RobustMean {
  const centre = median(values);
  const deviations = values.map((value) => Math.abs(value - centre));
  const limit = Math.max(outlierDeviations * normalScale * median(deviations), leastOutlier * Math.abs(centre));
  const kept = values.filter((value) => Math.abs(value - centre) <= limit);
  const of = median(kept);
  const spread = of === 0 ? 0 : median(kept.map((value) => Math.abs(value - of))) / of;
  return { mean: mean(kept), spread, accepted: kept.length, rejected: values.length - kept.length };
}
