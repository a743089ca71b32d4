import { lax, nn, numpy as np } from "@jax-js/jax";
import type { LossMetrics, LossSpec } from "@treadle/contracts";

/** Arrays `[rows, columns]`, already shifted: entry `[r, t]` is about predicting `targets[r, t]` from position t. */
export type LossInputs = {
  targets: np.Array;
  weights: np.Array;
  advantages: np.Array;
  oldLogprobs: np.Array;
  refLogprobs: np.Array;
  /** clipLow, clipHigh, dualClip, klCoefficient, entropyCoefficient: arrays, so new values need no new program. */
  coefficients: np.Array;
};

/** What of a loss is compiled in. */
export type LossShape = {
  readonly type: LossSpec["type"];
  readonly ratio: "token" | "sequence";
  readonly dualClip: boolean;
  readonly kl: boolean;
  readonly onPolicy: boolean;
};

export const metricNames = [
  "loss",
  "weight",
  "kl",
  "entropy",
  "clipFraction",
] as const satisfies readonly (keyof LossMetrics)[];

export function coefficientsOf(loss: LossSpec): Float32Array {
  if (loss.type === "cross-entropy") return new Float32Array(5);
  const { clipLow, clipHigh, dualClip = 0, klCoefficient, entropyCoefficient } = loss;
  return Float32Array.of(clipLow, clipHigh, dualClip, klCoefficient, entropyCoefficient);
}

/**
 * The loss, a weighted sum, and its metrics `[5]` in the order of `metricNames`, from log-probabilities
 * `[rows * columns, vocabSize]`. Entries of weight 0 contribute exactly nothing, to value and gradient: log-ratios are
 * masked before they are exponentiated, so no infinity meets a zero.
 */
export function weightedLoss(
  shape: LossShape,
  logprobs: np.Array,
  inputs: LossInputs,
): [loss: np.Array, metrics: np.Array] {
  const { targets, weights, advantages, oldLogprobs, refLogprobs, coefficients } = inputs;
  const [rows, columns] = targets.shape as [number, number];
  const vocabSize = logprobs.shape[1]!;
  const all = logprobs.reshape([rows, columns, vocabSize]);
  const chosen = all.ref.mul(nn.oneHot(targets, vocabSize)).sum(-1);
  const entropy = np.exp(all.ref).mul(all).sum(-1).neg();
  const total = (term: np.Array) => weights.ref.mul(term).sum();
  const weight = weights.ref.sum();
  if (shape.type === "cross-entropy") {
    for (const unused of [advantages, oldLogprobs, refLogprobs, coefficients]) unused.dispose();
    const loss = total(chosen.neg());
    const metrics = np.stack([loss.ref, weight, np.zeros([]), total(entropy), np.zeros([])]);
    weights.dispose();
    return [loss, lax.stopGradient(metrics)];
  }
  const [clipLow, clipHigh, dualClip, klCoefficient, entropyCoefficient] = np
    .split(coefficients, 5)
    .map((coefficient) => coefficient.reshape([])) as [np.Array, np.Array, np.Array, np.Array, np.Array];
  const mask = weights.ref.notEqual(0).astype(np.float32);

  if (shape.onPolicy) oldLogprobs.dispose();
  const old = shape.onPolicy ? lax.stopGradient(chosen.ref) : oldLogprobs;
  let logRatio = chosen.ref.sub(old).mul(mask.ref);
  if (shape.ratio === "sequence") {
    const length = np.maximum(mask.ref.sum(-1, { keepdims: true }), 1);
    logRatio = np.broadcastTo(logRatio.sum(-1, { keepdims: true }).div(length), [rows, columns]);
  }
  const ratio = np.exp(logRatio);
  const plain = ratio.ref.mul(advantages.ref);
  const lowest = np.array(1).sub(clipLow);
  const highest = np.array(1).add(clipHigh);
  const clipped = np.minimum(np.maximum(ratio, lowest), highest).mul(advantages.ref);
  let cut = clipped.ref.less(plain.ref);
  let objective = np.minimum(plain, clipped);
  if (shape.dualClip) {
    const bound = advantages.ref.mul(dualClip);
    const below = advantages.less(0).mul(objective.ref.less(bound.ref));
    cut = np.logicalOr(cut, below.ref);
    objective = np.where(below, bound, objective);
  } else {
    dualClip.dispose();
    advantages.dispose();
  }
  let kl = np.zeros([rows, columns]);
  if (shape.kl) {
    const difference = refLogprobs.sub(chosen).mul(mask);
    kl = np.exp(difference.ref).sub(difference).sub(1);
  } else {
    for (const unused of [refLogprobs, chosen, mask]) unused.dispose();
  }
  const penalty = kl.ref.mul(klCoefficient).sub(entropy.ref.mul(entropyCoefficient));
  const loss = total(penalty.sub(objective));
  const metrics = np.stack([loss.ref, weight, total(kl), total(entropy), total(cut.astype(np.float32))]);
  weights.dispose();
  return [loss, lax.stopGradient(metrics)];
}
