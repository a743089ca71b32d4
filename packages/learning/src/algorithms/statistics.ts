/** Added to a standard deviation before dividing by it. */
export const stdEpsilon = 1e-6;

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * Standard deviation with divisor n: the values are the whole population that is normalised. With `sample` it is n − 1,
 * whose advantages are smaller by sqrt((n − 1) / n).
 */
export function standardDeviation(
  values: readonly number[],
  center = mean(values),
  of: "population" | "sample" = "population",
): number {
  const divisor = of === "population" ? values.length : Math.max(1, values.length - 1);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - center) ** 2, 0) / divisor);
}
