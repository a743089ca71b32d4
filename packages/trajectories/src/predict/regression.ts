import { z } from "zod";

export const regressionState = (numFeatures: number) =>
  z.strictObject({
    weights: z.array(z.number()).length(numFeatures),
    /** inverse of the information matrix, by rows */
    covariance: z.array(z.number()).length(numFeatures ** 2),
  });
type RegressionState = z.infer<ReturnType<typeof regressionState>>;

/** Information that is kept with each sample learned: some 5000 samples are remembered. */
const kept = 1 - 1 / 5000;
const mostVariance = 10;

export function emptyRegression(numFeatures: number): RegressionState {
  const covariance = Array.from({ length: numFeatures ** 2 }, (_, at) => (at % (numFeatures + 1) === 0 ? 0.05 : 0));
  return { weights: new Array<number>(numFeatures).fill(0), covariance };
}

/**
 * Recursive least squares that forgets, from weights of zero, which it leaves only as far as samples speak for it.
 * A sample is taken for at most `clip` off, so that an outlier moves little.
 */
export class Regression {
  readonly #weights: Float64Array;
  readonly #covariance: Float64Array;

  constructor(state: RegressionState) {
    this.#weights = Float64Array.from(state.weights);
    this.#covariance = Float64Array.from(state.covariance);
  }

  get state(): RegressionState {
    return { weights: Array.from(this.#weights), covariance: Array.from(this.#covariance) };
  }

  value(features: readonly number[]): number {
    let sum = 0;
    for (let i = 0; i < features.length; i++) sum += features[i]! * this.#weights[i]!;
    return sum;
  }

  learn(features: readonly number[], value: number, clip: number): void {
    const d = features.length;
    const covariance = this.#covariance;
    const gain = features.map((_, i) => features.reduce((sum, x, j) => sum + covariance[i * d + j]! * x, 0));
    const scale = kept + features.reduce((sum, x, i) => sum + x * gain[i]!, 0);
    const error = value - this.value(features);
    const clipped = Math.max(-clip, Math.min(clip, error));
    let trace = 0;
    for (let i = 0; i < d; i++) {
      this.#weights[i]! += (gain[i]! / scale) * clipped;
      for (let j = 0; j < d; j++) covariance[i * d + j]! -= (gain[i]! * gain[j]!) / scale;
      trace += covariance[i * d + i]!;
    }
    // Forgetting inflates what is not excited by any sample, without bound if it were let.
    if (trace / kept > mostVariance * d) return;
    for (let at = 0; at < covariance.length; at++) covariance[at]! /= kept;
  }
}
