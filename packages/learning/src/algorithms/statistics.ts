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

/** Scales all policy tokens of several episodes together to mean 0 and standard deviation 1. `[episode][policy token]` */
export function normaliseTogether(perToken: readonly Float64Array[]): Float64Array[] {
  let count = 0;
  let sum = 0;
  for (const values of perToken) {
    for (const value of values) {
      count += 1;
      sum += value;
    }
  }
  const center = count === 0 ? 0 : sum / count;
  let squares = 0;
  for (const values of perToken) for (const value of values) squares += (value - center) ** 2;
  const scale = 1 / (Math.sqrt(count === 0 ? 0 : squares / count) + stdEpsilon);
  return perToken.map((values) => values.map((value) => (value - center) * scale));
}
