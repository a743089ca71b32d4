import { jit, lax, numpy as np, type OwnedFunction, valueAndGrad } from "@jax-js/jax";
import type { LossMetrics, LossSpec } from "@treadle/contracts";
import { lossMetricNames } from "../engine.ts";
import { dispose, floats, integers, references, type Tree } from "./device.ts";
import { coefficientsOf, type LossInputs, type LossShape, numCoefficients, weightedLoss } from "./policy-loss.ts";
import type { TransformerConfig } from "./transformer-config.ts";
import { type Cache, decode, emptyCache, forward } from "./transformer-model.ts";

/** One padded micro-batch on the host, `[rows, columns]`, shifted as `LossInputs` says. */
export type MicroBatch = {
  readonly rows: number;
  readonly columns: number;
  readonly tokens: Int32Array;
  readonly targets: Int32Array;
  readonly weights: Float32Array;
  readonly advantages: Float32Array;
  readonly oldLogprobs: Float32Array;
  readonly refLogprobs: Float32Array;
  readonly returns: Float32Array;
  readonly oldValues: Float32Array;
};

type TokenBatch = Pick<MicroBatch, "rows" | "columns" | "tokens" | "targets">;

type GradientProgram = OwnedFunction<
  (parameters: Tree, tokens: np.Array, inputs: LossInputs) => [[np.Array, np.Array], Tree]
>;

/** The compiled programs of one configuration. Each compiles once a shape and keeps nothing of its arguments. */
export class TransformerPrograms {
  readonly #forward;
  readonly #decode;
  readonly #spread;
  readonly #gradients = new Map<string, GradientProgram>();
  readonly #config: TransformerConfig;

  constructor(config: TransformerConfig) {
    this.#config = config;
    this.#forward = jit((parameters: Tree, tokens: np.Array, targets: np.Array) => {
      const intermediates: np.Array[] = [];
      const { logprobs, values } = forward(config, parameters, tokens, observer(intermediates));
      const [rows, columns] = targets.shape as [number, number];
      const chosen = np.takeAlongAxis(logprobs, targets.reshape([rows * columns, 1]), 1);
      return [chosen, values ? [values] : [], intermediates] as [np.Array, np.Array[], np.Array[]];
    });
    this.#decode = jit((parameters: Tree, tokens: np.Array, positions: np.Array, cache: Cache) => {
      const intermediates: np.Array[] = [];
      const [logprobs, next] = decode(config, parameters, tokens, positions, cache, observer(intermediates));
      return [logprobs, next, intermediates] as [np.Array, Cache, np.Array[]];
    });
    this.#spread = jit((cache: Cache, source: np.Array) => {
      const spread: Cache = cache.map(([keys, values]) => [
        np.take(keys, source.ref, 0),
        np.take(values, source.ref, 0),
      ]);
      source.dispose();
      return spread;
    });
  }

  /** Log-probability of each target, `[rows * columns]`. */
  logprobs(parameters: Tree, batch: TokenBatch): Float32Array {
    const [logprobs, values] = this.#scores(parameters, batch);
    values?.dispose();
    return logprobs.dataSync() as Float32Array;
  }

  /** Value of what stands before each target, `[rows * columns]`; the model has a value head. */
  values(parameters: Tree, batch: TokenBatch): Float32Array {
    const [logprobs, values] = this.#scores(parameters, batch);
    logprobs.dispose();
    return values!.dataSync() as Float32Array;
  }

  /** Calls `accumulate` with the gradient of each parameter, by name. */
  gradients(
    parameters: Tree,
    batch: MicroBatch,
    loss: LossSpec,
    present: { old: boolean; ref: boolean },
    accumulate: (name: string, gradient: Float32Array) => void,
  ): LossMetrics {
    const dims = [batch.rows, batch.columns];
    const [[value, metrics], gradients] = this.#gradientProgram(loss, present)(
      references(parameters),
      integers(batch.tokens, dims),
      {
        targets: integers(batch.targets, dims),
        weights: floats(batch.weights, dims),
        advantages: floats(batch.advantages, dims),
        oldLogprobs: floats(batch.oldLogprobs, dims),
        refLogprobs: floats(batch.refLogprobs, dims),
        returns: floats(batch.returns, dims),
        oldValues: floats(batch.oldValues, dims),
        coefficients: floats(coefficientsOf(loss), [numCoefficients]),
      },
    );
    value.dispose();
    for (const name in gradients) accumulate(name, gradients[name]!.dataSync() as Float32Array);
    const values = metrics.dataSync();
    return Object.fromEntries(lossMetricNames.map((name, i) => [name, values[i]!])) as LossMetrics;
  }

  emptyCache(slots: number): Cache {
    return emptyCache(this.#config, slots);
  }

  /** Consumes the cache; returns log-probabilities `[slots * vocabSize]` and the next cache. */
  decode(parameters: Tree, tokens: Int32Array, positions: Int32Array, cache: Cache): [Float32Array, Cache] {
    const [logprobs, next, intermediates] = this.#decode(
      references(parameters),
      integers(tokens, [tokens.length]),
      integers(positions, [positions.length]),
      cache,
    );
    for (const array of intermediates) array.dispose();
    return [logprobs.dataSync() as Float32Array, next];
  }

  /** Consumes the cache; slot i of the result is slot `source[i]` of it. */
  spread(cache: Cache, source: Int32Array): Cache {
    return this.#spread(cache, integers(source, [source.length])) as Cache;
  }

  /** Compiles decoding of `slots` slots whose prompts are read by `distinct` slots. */
  warmUpDecoding(parameters: Tree, slots: number, distinct: number): void {
    for (const size of new Set([slots, distinct])) {
      const [, cache] = this.decode(parameters, new Int32Array(size), new Int32Array(size), this.emptyCache(size));
      if (size < slots) disposeCache(this.spread(cache, new Int32Array(slots)));
      else disposeCache(cache);
    }
  }

  dispose(): void {
    this.#spread.dispose();
    this.#forward.dispose();
    this.#decode.dispose();
    for (const program of this.#gradients.values()) program.dispose();
    this.#gradients.clear();
  }

  #scores(parameters: Tree, batch: TokenBatch): [logprobs: np.Array, values: np.Array | undefined] {
    const shape = [batch.rows, batch.columns];
    const [chosen, [values], intermediates] = this.#forward(
      references(parameters),
      integers(batch.tokens, shape),
      integers(batch.targets, shape),
    );
    for (const array of intermediates) array.dispose();
    return [chosen, values];
  }

  #gradientProgram(loss: LossSpec, present: { old: boolean; ref: boolean }): GradientProgram {
    const policy = loss.type === "policy-gradient";
    const shape: LossShape = {
      type: loss.type,
      ratio: policy ? loss.ratio : "token",
      dualClip: policy && loss.dualClip !== undefined,
      kl: policy && present.ref,
      onPolicy: policy && !present.old,
      value: policy && loss.value !== undefined,
    };
    const key = JSON.stringify(shape);
    const known = this.#gradients.get(key);
    if (known) return known;
    const evaluate = (parameters: Tree, tokens: np.Array, inputs: LossInputs) =>
      weightedLoss(shape, forward(this.#config, parameters, tokens), inputs);
    const program = jit(valueAndGrad(evaluate, { hasAux: true })) as unknown as GradientProgram;
    this.#gradients.set(key, program);
    return program;
  }
}

function observer(intermediates: np.Array[]): (array: np.Array) => np.Array {
  return (array) => {
    intermediates.push(lax.stopGradient(array.ref));
    return array;
  };
}

export function disposeCache(cache: Cache): void {
  for (const [keys, values] of cache) dispose({ keys, values });
}
