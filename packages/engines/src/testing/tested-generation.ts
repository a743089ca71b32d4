import assert from "node:assert/strict";
import type { Sampling, Weights } from "@treadle/contracts";
import type { GenerateOptions, GenerationEngine } from "../engine.ts";
import { conformingModel } from "./conformance.ts";

/** An engine that runs a model of `conformingModel`'s sizes. It is released at first: the suite restores it. */
export type TestedGeneration = {
  readonly engine: GenerationEngine;
  /** log-probabilities of tokens, each given those before it, by the weights that the engine has */
  readonly score: (tokens: Int32Array, temperature: number) => Promise<Float32Array>;
  /** those that the engine has, and others; versions are 0 */
  readonly weights: readonly [own: Weights, other: Weights];
  /** a token's draw depends on how often its engine was asked for more: what goes on elsewhere is another sample of the same distribution */
  readonly drawsByRequest?: true;
  /** each token is told of before the next */
  readonly tellsAtOnce?: true;
  /** Completions that it computes at once, in the order that `order` says, fewer than 10; absent: it makes its own batches, and heeds no order. */
  readonly places?: number | undefined;
  close(): Promise<void>;
};

export const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
export const prompts: readonly Int32Array[] = [
  ...[[1, 2], [3], [4, 5, 6], [1, 2], [0, 0, 1], [6], [2, 3], [5], [1], [1, 4], [3, 3, 3]],
].map((tokens) => Int32Array.from(tokens));
/** all that the model may choose */
export const every: number[] = Array.from({ length: conformingModel.vocabSize }, (_, token) => token);

/**
 * The same, whose engine fails a case by `fail` for what a callback throws: that may reach an engine where nobody catches it, and end the
 * process. Nor does a call that fails before its case awaits it.
 */
export function watched(tested: TestedGeneration, fail: (error: unknown) => void): TestedGeneration {
  const { engine } = tested;
  const guarded =
    <A extends unknown[]>(callback: ((...given: A) => void) | undefined) =>
    (...given: A): void => {
      try {
        callback?.(...given);
      } catch (error) {
        fail(error);
      }
    };
  const generate: GenerationEngine["generate"] = async (given, as, options = {}) => {
    const { onCompletion, onProgress, join, extend } = options;
    const extending: GenerateOptions["extend"] =
      extend &&
      (async (...asked) => {
        try {
          return await extend(...asked);
        } catch (error) {
          if (!(error instanceof assert.AssertionError)) throw error; // as a tool fails
          fail(error);
          return undefined;
        }
      });
    return engine.generate(given, as, {
      ...options,
      ...(onCompletion && { onCompletion: guarded(onCompletion) }),
      ...(onProgress && { onProgress: guarded(onProgress) }),
      ...(join && { join: guarded(join) }),
      ...(extending && { extend: extending }),
    });
  };
  const handled: GenerationEngine["generate"] = (...asked) => {
    const made = generate(...asked);
    made.catch(() => {});
    return made;
  };
  const seen = new Proxy(engine, {
    get: (_, name) => {
      if (name === "generate") return handled;
      const value: unknown = Reflect.get(engine, name, engine);
      return typeof value === "function" ? value.bind(engine) : value;
    },
  });
  const { weights, drawsByRequest, tellsAtOnce, places } = tested;
  return {
    ...{ engine: seen, weights, places },
    ...(drawsByRequest && { drawsByRequest }),
    ...(tellsAtOnce && { tellsAtOnce }),
    score: (...asked) => tested.score(...asked),
    close: () => tested.close(),
  };
}
