/** Added to a standard deviation before dividing by it. */
export const stdEpsilon = 1e-6;

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * Standard deviation with divisor n, not n − 1: the values are the whole population that is normalised. (Libraries whose
 * default divides by n − 1 give advantages smaller by sqrt((n − 1) / n).)
 */
export function standardDeviation(values: readonly number[], center = mean(values)): number {
  return Math.sqrt(values.reduce((sum, value) => sum + (value - center) ** 2, 0) / values.length);
}
