/** Statistics of a few paired measurements. Pure. */

/** The mean, and the standard error of the mean (from the sample's deviation, with n − 1). */
export function meanAndError(values: readonly number[]): { readonly mean: number; readonly standardError: number } {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, standardError: Math.sqrt(squares / (values.length - 1) / values.length) };
}

/** Two-sided 95 % points of Student's t for 1 to 20 degrees of freedom; beyond, that of the normal is close. */
const studentT = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
  2.101, 2.093, 2.086,
];

export type PairedComparison = {
  /** mean of `values[i] − others[i]` */
  readonly difference: number;
  /** 95 % confidence interval of it (paired t) */
  readonly low: number;
  readonly high: number;
  /** share of all ways to swap the two of each pair that differ at least so much: exact, without a distribution */
  readonly pValue: number;
};

export function comparePairs(values: readonly number[], others: readonly number[]): PairedComparison {
  const differences = values.map((value, index) => value - (others[index] as number));
  const { mean, standardError } = meanAndError(differences);
  const reach = (studentT[differences.length - 2] ?? 1.96) * standardError;
  return { difference: mean, low: mean - reach, high: mean + reach, pValue: signFlips(differences) };
}

function signFlips(differences: readonly number[]): number {
  const observed = Math.abs(differences.reduce((sum, value) => sum + value, 0));
  const num = 2 ** differences.length;
  let extreme = 0;
  for (let signs = 0; signs < num; signs++) {
    const sum = differences.reduce((total, value, index) => total + ((signs >> index) & 1 ? -value : value), 0);
    if (Math.abs(sum) >= observed - 1e-12) extreme++;
  }
  return extreme / num;
}
