import { median } from "@treadle/contracts";

export type Rates = { readonly value: number; readonly baseline: number };

/**
 * Of the round whose ratio is the median. Both sides of a round are measured one after the other, so what other processes take from
 * minute to minute is in both alike; medians of each side alone could be of different minutes.
 */
export function medianRound(rounds: readonly Rates[]): Rates {
  const ratio = ({ value, baseline }: Rates) => value / baseline;
  const middle = median(rounds.map(ratio));
  const distance = (rates: Rates) => Math.abs(ratio(rates) - middle);
  return rounds.reduce((best, rates) => (distance(rates) < distance(best) ? rates : best));
}
