import { z } from "zod";
import type { ParameterShape } from "../parameters.ts";
import { mix, normal } from "../random.ts";

/** A decoder-only transformer: pre-norm (RMS), learned positions, multi-head causal attention, squared-ReLU MLP. */
export const TransformerConfig = z
  .strictObject({
    /** Size of the vocabulary: how many different tokens there are. */
    vocabSize: z.int().min(2),
    /** Each has attention and an MLP. */
    layers: z.int().positive(),
    /** Numbers by which a token is represented. */
    width: z.int().positive(),
    /** Of attention; they divide the width. */
    heads: z.int().positive(),
    /** Most tokens of a row, prompt and completion together. */
    contextLength: z.int().min(2),
    /** A critic on the same layers: one more output, the value of the tokens so far. PPO needs it. */
    valueHead: z.boolean().default(false),
    /** Seeds the initial parameters: equal configurations start equal, on every rank. */
    seed: z.int().nonnegative().default(0),
    /** Most tokens of one micro-batch, the sequences that workers give to one call of a training engine; a longer sequence has one of its own. */
    microBatchTokens: z.int().positive().default(8192),
    /** Completions of one call that are computed at once; others wait for a place. */
    slots: z.int().positive().default(256),
  })
  .refine((config) => config.width % config.heads === 0, { path: ["heads"], message: "must divide width" });
export type TransformerConfig = z.infer<typeof TransformerConfig>;

export const valueHeadName = "value.projection";

/** RMS norms have gains alone and no layer has a bias; `[in, out]` matrices multiply rows from the right. */
export function transformerShapes(config: TransformerConfig): ParameterShape[] {
  const { vocabSize, width, contextLength } = config;
  const shapes: ParameterShape[] = [
    { name: "embedding.token", shape: [vocabSize, width] },
    { name: "embedding.position", shape: [contextLength, width] },
  ];
  for (let layer = 0; layer < config.layers; layer++) {
    shapes.push(
      { name: `layer${layer}.attention.norm`, shape: [width] },
      { name: `layer${layer}.attention.input`, shape: [width, 3 * width] },
      { name: `layer${layer}.attention.output`, shape: [width, width] },
      { name: `layer${layer}.mlp.norm`, shape: [width] },
      { name: `layer${layer}.mlp.input`, shape: [width, 4 * width] },
      { name: `layer${layer}.mlp.output`, shape: [4 * width, width] },
    );
  }
  shapes.push({ name: "output.norm", shape: [width] }, { name: "output.projection", shape: [width, vocabSize] });
  if (config.valueHead) shapes.push({ name: valueHeadName, shape: [width, 1] });
  return shapes;
}

/**
 * Gains start at one. Matrices start normal with deviation one over the square root of their inputs; those that write
 * into the residual stream are scaled down by the number of writes, so that its variance does not grow with depth. Values
 * start at zero: an untrained critic knows nothing, and its noise would be taken for advantages.
 */
export function initialTransformer(
  config: TransformerConfig,
  { name, shape }: ParameterShape,
  index: number,
): Float32Array {
  const size = shape.reduce((a, b) => a * b, 1);
  if (shape.length === 1) return new Float32Array(size).fill(1);
  if (name === valueHeadName) return new Float32Array(size);
  const residual = name.endsWith(".output") ? 1 / Math.sqrt(2 * config.layers) : 1;
  const deviation = name.startsWith("embedding") ? 0.5 : residual / Math.sqrt(shape[0]!);
  const stream = mix(config.seed, index);
  return Float32Array.from({ length: size }, (_, i) => deviation * normal(stream, i));
}
