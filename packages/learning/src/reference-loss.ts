import type { LossMetrics, LossSpec, TrainBatch } from "@treadle/contracts";
import { invalid } from "./episode.ts";

/**
 * The meaning of `LossSpec`, in float64: what engines are tested against.
 *
 * Given for each entry the new log-probability `new` of its token (and the entropy `H` of the distribution the token was
 * predicted from, and the critic's value `v` before the token), the loss is the plain sum of `weight · term` over the entries with a weight other than 0; all other
 * entries are never read.
 *
 * `cross-entropy`: term = −new.
 *
 * `policy-gradient`, with advantage A, and `old` and `ref` from the batch:
 *
 *     term = −surrogate + klCoefficient · k3 − entropyCoefficient · H + value.coefficient · error
 *
 *     ratio      token:    ρ = exp(new − old)
 *                sequence: ρ = exp(mean of (new − old) over the row's entries with weight)   the same for the whole row;
 *                          its gradient reaches every one of those entries
 *     clipped    min(ρ A, clip(ρ, 1 − clipLow, 1 + clipHigh) A)                              PPO, arXiv:1707.06347
 *     surrogate  clipped; with dualClip c and A < 0: max(clipped, c A)                       arXiv:1912.09729
 *     k3         exp(ref − new) − 1 − (ref − new)      estimates KL(policy || reference), never negative
 *                                                      (Schulman, "Approximating KL Divergence", 2020)
 *
 *     error      ½ max((v − return)², (old value + clip(v − old value, ± value.clip) − return)²)   0 without `value`
 *
 * Without `oldLogprobs` the batch is on-policy: `old` is `new` held constant, so ρ is 1 and its gradient is that of
 * REINFORCE. The gradient of a clipped surrogate is 0; where both sides of a min or max are equal it is that of ρ A.
 *
 * Metrics are sums of `weight · x`: `kl` of k3 (0 without refLogprobs), `entropy` of H (0 if not given), `clipFraction` of
 * 1 where the surrogate differs from ρ A, else 0, `valueLoss` of the error. `weight` is the sum of the weights.
 *
 * Throws `learning.invalid-batch` when the spec needs an array that is missing, an array has the wrong length, or a weight
 * is negative.
 */
export function referenceLoss(
  spec: LossSpec,
  batch: TrainBatch,
  newLogprobs: ArrayLike<number>,
  entropies?: ArrayLike<number>,
  newValues?: ArrayLike<number>,
): ReferenceLoss {
  check(spec, batch, newLogprobs, entropies, newValues);
  return spec.type === "cross-entropy"
    ? crossEntropy(batch, newLogprobs, entropies)
    : policyGradient(spec, batch, newLogprobs, entropies, newValues);
}

export type ReferenceLoss = {
  readonly metrics: LossMetrics;
  /** d loss / d newLogprobs, `[rows, columns]`, with entropies held constant */
  readonly gradient: Float64Array;
  /** d loss / d entropies, `[rows, columns]` */
  readonly entropyGradient: Float64Array;
  /** d loss / d newValues, `[rows, columns]` */
  readonly valueGradient: Float64Array;
};

function crossEntropy(
  batch: TrainBatch,
  newLogprobs: ArrayLike<number>,
  entropies: ArrayLike<number> | undefined,
): ReferenceLoss {
  const gradient = new Float64Array(batch.weights.length);
  const sums = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
  batch.weights.forEach((weight, entry) => {
    if (weight === 0) return;
    sums.loss -= weight * newLogprobs[entry]!;
    sums.weight += weight;
    sums.entropy += weight * (entropies?.[entry] ?? 0);
    gradient[entry] = -weight;
  });
  const none = () => new Float64Array(batch.weights.length);
  return { metrics: sums, gradient, entropyGradient: none(), valueGradient: none() };
}

function policyGradient(
  spec: Extract<LossSpec, { type: "policy-gradient" }>,
  batch: TrainBatch,
  newLogprobs: ArrayLike<number>,
  entropies: ArrayLike<number> | undefined,
  newValues: ArrayLike<number> | undefined,
): ReferenceLoss {
  const { rows, columns, weights, oldLogprobs, refLogprobs } = batch;
  const gradient = new Float64Array(weights.length);
  const entropyGradient = new Float64Array(weights.length);
  const valueGradient = new Float64Array(weights.length);
  const sums = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
  const logRatio = (entry: number) => (oldLogprobs === undefined ? 0 : newLogprobs[entry]! - oldLogprobs[entry]!);

  for (let row = 0; row < rows; row++) {
    const entries: number[] = [];
    for (let entry = row * columns; entry < (row + 1) * columns; entry++) if (weights[entry] !== 0) entries.push(entry);
    const rowRatio = Math.exp(entries.reduce((sum, entry) => sum + logRatio(entry), 0) / entries.length);
    let rowGradient = 0;

    for (const entry of entries) {
      const weight = weights[entry]!;
      const advantage = batch.advantages![entry]!;
      const ratio = spec.ratio === "sequence" ? rowRatio : Math.exp(logRatio(entry));
      const surrogate = clippedSurrogate(spec, ratio, advantage);
      sums.weight += weight;
      sums.loss -= weight * surrogate.value;
      sums.clipFraction += surrogate.clipped ? weight : 0;
      if (!surrogate.clipped) {
        // d ρ / d new is ρ; for a sequence it is ρ / n at each of its n entries.
        if (spec.ratio === "sequence") rowGradient -= (weight * advantage * ratio) / entries.length;
        else gradient[entry]! -= weight * advantage * ratio;
      }

      if (refLogprobs !== undefined) {
        const difference = refLogprobs[entry]! - newLogprobs[entry]!;
        const k3 = Math.expm1(difference) - difference;
        sums.kl += weight * k3;
        if (spec.klCoefficient > 0) {
          sums.loss += weight * spec.klCoefficient * k3;
          gradient[entry]! -= weight * spec.klCoefficient * Math.expm1(difference);
        }
      }

      if (entropies !== undefined) {
        sums.entropy += weight * entropies[entry]!;
        sums.loss -= weight * spec.entropyCoefficient * entropies[entry]!;
        entropyGradient[entry] = -weight * spec.entropyCoefficient;
      }

      if (spec.value) {
        const error = clippedError(
          newValues![entry]!,
          batch.oldValues![entry]!,
          batch.returns![entry]!,
          spec.value.clip,
        );
        sums.valueLoss += weight * error.value;
        sums.loss += weight * spec.value.coefficient * error.value;
        valueGradient[entry] = weight * spec.value.coefficient * error.slope;
      }
    }
    if (spec.ratio === "sequence") for (const entry of entries) gradient[entry]! += rowGradient;
  }
  return { metrics: sums, gradient, entropyGradient, valueGradient };
}

/** Half of the larger squared error, and its derivative by the value. */
function clippedError(
  value: number,
  oldValue: number,
  target: number,
  clip: number,
): { readonly value: number; readonly slope: number } {
  const plain = value - target;
  const change = value - oldValue;
  const moved = oldValue + Math.min(Math.max(change, -clip), clip) - target;
  if (plain ** 2 >= moved ** 2) return { value: plain ** 2 / 2, slope: plain };
  return { value: moved ** 2 / 2, slope: Math.abs(change) > clip ? 0 : moved };
}

function clippedSurrogate(
  spec: { readonly clipLow: number; readonly clipHigh: number; readonly dualClip?: number | undefined },
  ratio: number,
  advantage: number,
): { readonly value: number; readonly clipped: boolean } {
  const plain = ratio * advantage;
  const clippedRatio = Math.min(Math.max(ratio, 1 - spec.clipLow), 1 + spec.clipHigh);
  let value = Math.min(plain, clippedRatio * advantage);
  if (spec.dualClip !== undefined && advantage < 0) value = Math.max(value, spec.dualClip * advantage);
  return { value, clipped: value !== plain };
}

function check(
  spec: LossSpec,
  batch: TrainBatch,
  newLogprobs: ArrayLike<number>,
  entropies: ArrayLike<number> | undefined,
  newValues: ArrayLike<number> | undefined,
): void {
  const entries = batch.rows * batch.columns;
  const arrays: [string, ArrayLike<number> | undefined][] = [
    ["tokens", batch.tokens],
    ["weights", batch.weights],
    ["advantages", batch.advantages],
    ["oldLogprobs", batch.oldLogprobs],
    ["refLogprobs", batch.refLogprobs],
    ["returns", batch.returns],
    ["oldValues", batch.oldValues],
    ["newLogprobs", newLogprobs],
    ["entropies", entropies],
    ["newValues", newValues],
  ];
  for (const [name, array] of arrays) {
    if (array !== undefined && array.length !== entries) {
      throw invalid(`${name} has '${array.length}' entries: allowed is ${batch.rows} × ${batch.columns}`);
    }
  }
  const negative = batch.weights.findIndex((weight) => !(weight >= 0));
  if (negative >= 0) throw invalid(`weight '${batch.weights[negative]}' at '${negative}': allowed is a number >= 0`);
  if (spec.type === "cross-entropy") return;
  if (batch.advantages === undefined) throw invalid("the batch has no advantages: policy-gradient needs them");
  if (spec.klCoefficient > 0 && batch.refLogprobs === undefined) {
    throw invalid(`the batch has no refLogprobs: klCoefficient '${spec.klCoefficient}' needs them`);
  }
  if (spec.entropyCoefficient > 0 && entropies === undefined) {
    throw invalid(`no entropies were given: entropyCoefficient '${spec.entropyCoefficient}' needs them`);
  }
  const critic = { newValues, returns: batch.returns, oldValues: batch.oldValues };
  for (const [name, array] of Object.entries(critic)) {
    if (spec.value && array === undefined) throw invalid(`no ${name} were given: the loss trains a critic with them`);
  }
}
