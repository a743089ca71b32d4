import type { TrainBatch } from "@treadle/contracts";
import { type TransformerConfig, TransformerEngine } from "@treadle/engines";
import type { z } from "zod";

/** Small enough that a test compiles its losses in a fraction of a second. */
export const smallConfig = {
  vocabSize: 7,
  layers: 2,
  width: 8,
  heads: 2,
  contextLength: 6,
  seed: 5,
  slots: 8,
};

export const smallTransformer = (changes: Partial<z.input<typeof TransformerConfig>> = {}) =>
  TransformerEngine.create({ ...smallConfig, ...changes });

/** A generator of the same numbers in [0, 1) on every run. */
export function sequence(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Rows with a prompt of two tokens, a ragged end, and every array a loss may ask for. */
export function randomBatch(rows: number, columns: number, seed: number): Required<TrainBatch> {
  const random = sequence(seed);
  const fill = (value: (t: number) => number) =>
    Float32Array.from({ length: rows * columns }, (_, i) => value(i % columns));
  const ends = Array.from({ length: rows }, () => 3 + Math.floor(random() * (columns - 2)));
  const weights = fill((t) => (t < 2 ? 0 : 0.2 + random()));
  for (let row = 0; row < rows; row++) weights.fill(0, row * columns + ends[row]!, (row + 1) * columns);
  return {
    rows,
    columns,
    tokens: Int32Array.from({ length: rows * columns }, () => Math.floor(random() * smallConfig.vocabSize)),
    // exact in float32
    temperatures: Float32Array.from({ length: rows }, (_, row) => [1, 0.5, 2][row % 3]!),
    weights,
    advantages: fill(() => 2 * random() - 1),
    oldLogprobs: fill(() => -2 + 1.2 * (random() - 0.5)),
    refLogprobs: fill(() => -2 + 1.2 * (random() - 0.5)),
    returns: fill(() => 2 * random() - 1),
    oldValues: fill(() => random() - 0.5),
  };
}
