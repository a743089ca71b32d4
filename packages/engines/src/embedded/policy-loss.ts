import { lax, nn, numpy as np } from "@jax-js/jax";
import type { LossSpec } from "@treadle/contracts";
import type { Outputs } from "./transformer-model.ts";

/** Arrays `[rows, columns]`, already shifted: entry `[r, t]` is about predicting `targets[r, t]` from position t. */
export type LossInputs = {
  targets: np.Array;
  weights: np.Array;
  advantages: np.Array;
  oldLogprobs: np.Array;
  refLogprobs: np.Array;
  returns: np.Array;
  oldValues: np.Array;
  /** those of `coefficientsOf`: an array, so new values need no new program */
  coefficients: np.Array;
};

/** What of a loss is compiled in. */
export type LossShape = {
  readonly type: LossSpec["type"];
  readonly ratio: "token" | "sequence";
  readonly dualClip: boolean;
  readonly kl: boolean;
  readonly onPolicy: boolean;
  readonly value: boolean;
};

export const numCoefficients = 7;

/** clipLow, clipHigh, dualClip, klCoefficient, entropyCoefficient, and the value's coefficient and clip. */
export function coefficientsOf(loss: LossSpec): Float32Array {
  if (loss.type === "cross-entropy") return new Float32Array(numCoefficients);
  const { clipLow, clipHigh, dualClip = 0, klCoefficient, entropyCoefficient, value } = loss;
  const critic = [value?.coefficient ?? 0, value?.clip ?? 0];
  return Float32Array.of(clipLow, clipHigh, dualClip, klCoefficient, entropyCoefficient, ...critic);
}

/**
 * The loss, a weighted sum, and its metrics `[6]` in the order of `lossMetricNames`, from a forward pass.
 * Entries of weight 0 contribute exactly nothing, to value and gradient: log-ratios are masked before they are
 * exponentiated, so no infinity meets a zero.
 */
export function weightedLoss(
  shape: LossShape,
  { logprobs, values }: Outputs,
  inputs: LossInputs,
): [loss: np.Array, metrics: np.Array] {
  const { targets, weights, advantages, oldLogprobs, refLogprobs, returns, oldValues, coefficients } = inputs;
  const [rows, columns] = targets.shape as [number, number];
  const vocabSize = logprobs.shape[1]!;
  const all = logprobs.reshape([rows, columns, vocabSize]);
  const chosen = all.ref.mul(nn.oneHot(targets, vocabSize)).sum(-1);
  const entropy = np.exp(all.ref).mul(all).sum(-1).neg();
  const total = (term: np.Array) => weights.ref.mul(term).sum();
  const weight = weights.ref.sum();
  if (shape.type === "cross-entropy") {
    for (const unused of [advantages, oldLogprobs, refLogprobs, returns, oldValues, coefficients, values])
      unused?.dispose();
    const loss = total(chosen.neg());
    const metrics = np.stack([loss.ref, weight, np.zeros([]), total(entropy), np.zeros([]), np.zeros([])]);
    weights.dispose();
    return [loss, lax.stopGradient(metrics)];
  }
  const [clipLow, clipHigh, dualClip, klCoefficient, entropyCoefficient, valueCoefficient, valueClip] = np
    .split(coefficients, numCoefficients)
    .map((coefficient) => coefficient.reshape([])) as [
    np.Array,
    np.Array,
    np.Array,
    np.Array,
    np.Array,
    np.Array,
    np.Array,
  ];
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
  let squared = np.zeros([rows, columns]);
  if (shape.value) squared = clippedSquares(values!.reshape([rows, columns]), returns, oldValues, valueClip);
  else for (const unused of [values, returns, oldValues, valueClip]) unused?.dispose();
  const valueLoss = squared.mul(0.5);
  const penalty = kl.ref.mul(klCoefficient).sub(entropy.ref.mul(entropyCoefficient));
  const loss = total(penalty.add(valueLoss.ref.mul(valueCoefficient)).sub(objective));
  const parts = [total(kl), total(entropy), total(cut.astype(np.float32)), total(valueLoss)];
  const metrics = np.stack([loss.ref, weight, ...parts]);
  weights.dispose();
  return [loss, lax.stopGradient(metrics)];
}

/** PPO's value error: the larger of the squared errors of the value and of the old value moved by at most `clip`. */
export function clippedSquares(values: np.Array, returns: np.Array, oldValues: np.Array, clip: np.Array): np.Array {
  const plain = np.square(values.ref.sub(returns.ref));
  const change = np.minimum(np.maximum(values.sub(oldValues.ref), clip.ref.neg()), clip);
  return np.maximum(plain, np.square(oldValues.add(change).sub(returns)));
}
