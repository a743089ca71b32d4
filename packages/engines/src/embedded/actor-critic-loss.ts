import { lax, numpy as np } from "@jax-js/jax";
import { maxLogRatio } from "@treadle/contracts";
import type { ControlLoss } from "../engine.ts";
import { type ActorCriticConfig, layerNames, logDeviationName } from "./actor-critic-config.ts";

/** Device arrays by name. */
export type Tree = { [name: string]: np.Array };

/** `observations` `[rows, observationSize]`, `actions` `[rows, actionSize]`, `coefficients` `[5]`, the rest `[rows]`. */
export type ControlInputs = {
  observations: np.Array;
  actions: np.Array;
  weights: np.Array;
  advantages: np.Array;
  oldLogprobs: np.Array;
  returns: np.Array;
  oldValues: np.Array;
  coefficients: np.Array;
};

export function controlCoefficients(loss: ControlLoss): Float32Array {
  const { clipLow, clipHigh, valueCoefficient, valueClip = 0, entropyCoefficient } = loss;
  return Float32Array.of(clipLow, clipHigh, valueCoefficient, valueClip, entropyCoefficient);
}

function network(name: "actor" | "critic", config: ActorCriticConfig, parameters: Tree, inputs: np.Array): np.Array {
  const layers = layerNames(name, config);
  return layers.reduce((x, [matrix, bias], i) => {
    const linear = np.matmul(x, parameters[matrix]!).add(parameters[bias]!);
    return i < layers.length - 1 ? np.tanh(linear) : linear;
  }, inputs);
}

function clamp(x: np.Array, lowest: np.Array, highest: np.Array): np.Array {
  return np.minimum(np.maximum(x, lowest), highest);
}

/** The weighted loss and its metrics `[6]` in the order of `lossMetricNames`. */
export function controlLoss(
  config: ActorCriticConfig,
  clipValues: boolean,
  parameters: Tree,
  inputs: ControlInputs,
): [loss: np.Array, metrics: np.Array] {
  const { observations, actions, weights, advantages, oldLogprobs, returns, oldValues, coefficients } = inputs;
  const rows = weights.shape[0]!;
  const [clipLow, clipHigh, valueCoefficient, valueClip, entropyCoefficient] = np
    .split(coefficients, 5)
    .map((coefficient) => coefficient.reshape([])) as [np.Array, np.Array, np.Array, np.Array, np.Array];
  const total = (term: np.Array) => weights.ref.mul(term).sum();

  const means = network("actor", config, parameters, observations.ref);
  const logDeviation = parameters[logDeviationName]!;
  const scaled = actions.sub(means).mul(np.exp(logDeviation.ref.neg()));
  const constant = 0.5 * Math.log(2 * Math.PI) * config.actionSize;
  const logprobs = np.square(scaled).sum(-1).mul(-0.5).sub(logDeviation.ref.sum()).sub(constant);
  const mask = weights.ref.notEqual(0).astype(np.float32);
  const logRatio = clampRatio(logprobs.sub(oldLogprobs), maxLogRatio).mul(mask);
  const kl = np.exp(logRatio.ref).sub(1).sub(logRatio.ref);
  const ratio = np.exp(logRatio);
  const plain = ratio.ref.mul(advantages.ref);
  const clipped = clamp(ratio, np.array(1).sub(clipLow), np.array(1).add(clipHigh)).mul(advantages);
  const cut = clipped.ref.less(plain.ref).astype(np.float32);
  const objective = np.minimum(plain, clipped);

  const values = network("critic", config, parameters, observations).reshape([rows]);
  let squared: np.Array;
  if (clipValues) squared = clippedSquares(values, returns, oldValues, valueClip);
  else {
    squared = np.square(values.sub(returns));
    for (const unused of [oldValues, valueClip]) unused.dispose();
  }
  const valueLoss = total(squared).mul(0.5);
  const gaussian = 0.5 * Math.log(2 * Math.PI * Math.E) * config.actionSize;
  const weight = weights.ref.sum();
  const entropy = logDeviation.sum().add(gaussian).mul(weight.ref);
  const loss = valueLoss.ref.mul(valueCoefficient).sub(total(objective)).sub(entropy.ref.mul(entropyCoefficient));
  const metrics = np.stack([loss.ref, weight, total(kl), entropy, total(cut), valueLoss]);
  weights.dispose();
  return [loss, lax.stopGradient(metrics)];
}

/** Within ± `bound`; beyond, the gradient is 0. */
function clampRatio(x: np.Array, bound: number): np.Array {
  return np.minimum(np.maximum(x, -bound), bound);
}

/** PPO's value error: the larger of the squared errors of the value and of the old value moved by at most `clip`. */
function clippedSquares(values: np.Array, returns: np.Array, oldValues: np.Array, clip: np.Array): np.Array {
  const plain = np.square(values.ref.sub(returns.ref));
  const change = np.minimum(np.maximum(values.sub(oldValues.ref), clip.ref.neg()), clip);
  return np.maximum(plain, np.square(oldValues.add(change).sub(returns)));
}
