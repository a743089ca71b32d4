import { type LossMetrics, type LossSpec, maxLogRatio, type TrainBatch } from "@treadle/contracts";
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
 *     term = −surrogate + klCoefficient · kl − entropyCoefficient · H + value.coefficient · error
 *
 *     ratio      token:            ρ = exp(within(new − old))
 *                sequence:         ρ = exp(within(mean of (new − old) over the row's entries with weight))
 *                sequence-product: ρ = exp(within(sum of (new − old) over them))
 *                                  the last two are the same for the whole row; the gradient reaches each of those entries
 *     within     to ± 20 nats (`maxLogRatio`), as verl clamps log-ratios; beyond, the gradient is 0
 *     clipped    min(ρ A, clip(ρ, 1 − clipLow, 1 + clipHigh) A)                              PPO, arXiv:1707.06347
 *     surrogate  clipped; with dualClip c and A < 0: max(clipped, c A)                       arXiv:1912.09729
 *                cispo: clip(ρ, 1 − clipLow, 1 + clipHigh) A · new, the clipped ratio held constant   arXiv:2506.13585
 *     kl         with d = within(new − ref): k3 is exp(−d) − 1 + d, never negative; k2 is d² / 2, whose gradient is that
 *                of the KL on average           (Schulman, "Approximating KL Divergence", 2020)
 *
 *     error      ½ max((v − return)², (old value + clip(v − old value, ± value.clip) − return)²)   0 without `value`
 *
 * Without `oldLogprobs` the batch is on-policy: `old` is `new` held constant, so ρ is 1 and its gradient is that of
 * REINFORCE. The gradient of a clipped surrogate is 0; where both sides of a min or max are equal it is that of ρ A.
 *
 * Metrics are sums of `weight · x`: `kl` (0 without refLogprobs), `entropy` of H (0 if not given), `clipFraction` of 1
 * where the surrogate differs from ρ A (cispo: where the clipped ratio differs from ρ), else 0, `valueLoss` of the error.
 * `weight` is the sum of the weights.
 *
 * Throws `learning.invalid-batch` when the spec needs an array that is missing, an array has the wrong length, a weight is
 * negative or not finite, or a number with a weight is not finite.
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
    const rowSum = entries.reduce((sum, entry) => sum + logRatio(entry), 0);
    const rowRatio = clampedRatio(spec.ratio === "sequence" ? rowSum / entries.length : rowSum);
    let rowGradient = 0;

    for (const entry of entries) {
      const weight = weights[entry]!;
      const advantage = batch.advantages![entry]!;
      const ratio = spec.ratio === "token" ? clampedRatio(logRatio(entry)) : rowRatio;
      const surrogate =
        spec.surrogate === "cispo"
          ? cispoSurrogate(spec, ratio.value, advantage, newLogprobs[entry]!)
          : clippedSurrogate(spec, ratio, advantage);
      sums.weight += weight;
      sums.loss -= weight * surrogate.value;
      sums.clipFraction += surrogate.clipped ? weight : 0;
      gradient[entry]! -= weight * surrogate.logprobSlope;
      // d ρ / d new is ρ at every entry of a product, and ρ / n at each of the n of a mean.
      const slope = weight * surrogate.ratioSlope * ratio.slope;
      if (spec.ratio === "token") gradient[entry]! -= slope;
      else rowGradient -= spec.ratio === "sequence" ? slope / entries.length : slope;

      if (refLogprobs !== undefined) {
        const kl = klEstimate(spec.klEstimator ?? "k3", newLogprobs[entry]! - refLogprobs[entry]!);
        sums.kl += weight * kl.value;
        if (spec.klCoefficient > 0) {
          sums.loss += weight * spec.klCoefficient * kl.value;
          gradient[entry]! += weight * spec.klCoefficient * kl.slope;
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
    if (spec.ratio !== "token") for (const entry of entries) gradient[entry]! += rowGradient;
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

/** A number, and its derivative by the log-ratio that it is a function of. */
type Sloped = { readonly value: number; readonly slope: number };

function clampedRatio(logRatio: number): Sloped {
  const value = Math.exp(Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio));
  return { value, slope: Math.abs(logRatio) > maxLogRatio ? 0 : value };
}

function klEstimate(estimator: "k2" | "k3", logRatio: number): Sloped {
  const within = Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio);
  const moves = Math.abs(logRatio) > maxLogRatio ? 0 : 1;
  if (estimator === "k2") return { value: within ** 2 / 2, slope: moves * within };
  return { value: Math.expm1(-within) + within, slope: -moves * Math.expm1(-within) };
}

type Surrogate = {
  readonly value: number;
  readonly clipped: boolean;
  /** derivatives by the ratio, and by the new log-probability where the surrogate has it as a factor */
  readonly ratioSlope: number;
  readonly logprobSlope: number;
};
type Clip = { readonly clipLow: number; readonly clipHigh: number; readonly dualClip?: number | undefined };

const clippedRatio = (spec: Clip, ratio: number) => Math.min(Math.max(ratio, 1 - spec.clipLow), 1 + spec.clipHigh);

function clippedSurrogate(spec: Clip, ratio: Sloped, advantage: number): Surrogate {
  const plain = ratio.value * advantage;
  let value = Math.min(plain, clippedRatio(spec, ratio.value) * advantage);
  if (spec.dualClip !== undefined && advantage < 0) value = Math.max(value, spec.dualClip * advantage);
  const clipped = value !== plain;
  return { value, clipped, ratioSlope: clipped ? 0 : advantage, logprobSlope: 0 };
}

function cispoSurrogate(spec: Clip, ratio: number, advantage: number, logprob: number): Surrogate {
  const held = clippedRatio(spec, ratio);
  return {
    value: held * advantage * logprob,
    clipped: held !== ratio,
    ratioSlope: 0,
    logprobSlope: held * advantage,
  };
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
  const negative = batch.weights.findIndex((weight) => !(weight >= 0 && weight < Number.POSITIVE_INFINITY));
  if (negative >= 0) throw invalid(`weight '${batch.weights[negative]}' at '${negative}': allowed is a number >= 0`);
  for (const [name, array] of arrays) {
    for (let entry = 0; array !== undefined && entry < entries; entry++) {
      if (batch.weights[entry] === 0 || Number.isFinite(array[entry])) continue;
      throw invalid(
        `${name} has '${array[entry]}' at '${entry}': allowed is a finite number where the weight is not 0`,
      );
    }
  }
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
