import type { TrainSample } from "./algorithm.ts";

/** Added to a standard deviation before dividing by it. */
export const stdEpsilon = 1e-6;

/**
 * Of some numbers: how many, their mean, and the sum of their squared distances from it. In float64 and centred, because
 * a mean square less a squared mean loses all digits of a deviation that is small beside the mean.
 */
export type Moments = { readonly count: number; readonly mean: number; readonly squares: number };

/**
 * Welford's algorithm ("Note on a method for calculating corrected sums of squares and products", 1962). The mean of equal
 * numbers is that number, without rounding.
 */
export function momentsOf(values: Iterable<number>): Moments {
  let count = 0;
  let mean = 0;
  let squares = 0;
  for (const value of values) {
    count += 1;
    const distance = value - mean;
    mean += distance / count;
    squares += distance * (value - mean);
  }
  return { count, mean, squares };
}

/**
 * The moments of all numbers from those of parts of them (Chan, Golub and LeVeque, 1979); of none for no part. The mean of
 * equal numbers is that number here, too, whatever parts they are in.
 */
export function mergeMoments(parts: readonly Moments[]): Moments {
  return parts.reduce(
    (a, b) => {
      if (a.count === 0) return b;
      if (b.count === 0) return a;
      const count = a.count + b.count;
      const distance = b.mean - a.mean;
      return {
        count,
        mean: a.mean + (distance * b.count) / count,
        squares: a.squares + b.squares + (distance ** 2 * a.count * b.count) / count,
      };
    },
    { count: 0, mean: 0, squares: 0 },
  );
}

/** Takes a number to mean 0 and standard deviation 1 among those of which `moments` are. */
export function standardiser({ count, mean, squares }: Moments): (value: number) => number {
  const scale = 1 / (Math.sqrt(squares / Math.max(1, count)) + stdEpsilon);
  return (value) => (value - mean) * scale;
}

/** Of the advantages of policy tokens; those of parts of a step, and of several ranks, are merged. */
export function advantageMoments(samples: readonly TrainSample[]): Moments {
  return momentsOf(
    (function* () {
      for (const { episode, advantages } of samples) {
        for (let token = 0; token < advantages.length; token++) {
          if (episode.mask[token] !== 0) yield advantages[token]!;
        }
      }
    })(),
  );
}

/** Scales advantages to mean 0 and standard deviation 1 over the policy tokens of which `moments` are. */
export function normaliseAdvantages(samples: readonly TrainSample[], moments: Moments): TrainSample[] {
  const standardise = standardiser(moments);
  return samples.map((sample) => ({
    ...sample,
    advantages: sample.advantages.map((advantage, token) =>
      sample.episode.mask[token] === 0 ? 0 : standardise(advantage),
    ),
  }));
}
