import { z } from "zod";
import type { ParameterShape } from "../parameters.ts";
import { mix, normal } from "../random.ts";

/** Two tanh networks, one for the mean of a Gaussian action and one for the value; the deviation is a parameter. */
export const ActorCriticConfig = z.strictObject({
  observationSize: z.int().positive(),
  actionSize: z.int().positive(),
  hidden: z.array(z.int().positive()).min(1).default([64, 64]),
  /** Natural logarithm of the action's deviation before training. */
  initialLogDeviation: z.number().default(-0.5),
  seed: z.int().nonnegative().default(0),
  /** Rows that the compiled training program takes; other numbers are split and padded. */
  microBatchRows: z.int().positive().default(256),
});
export type ActorCriticConfig = z.infer<typeof ActorCriticConfig>;

export const logDeviationName = "actor.logDeviation";

/** Names of matrix and bias of each layer of a network, in order. */
export function layerNames(network: "actor" | "critic", config: ActorCriticConfig): [matrix: string, bias: string][] {
  return Array.from({ length: config.hidden.length + 1 }, (_, i) => [`${network}.${i}.matrix`, `${network}.${i}.bias`]);
}

export function actorCriticShapes(config: ActorCriticConfig): ParameterShape[] {
  const network = (name: "actor" | "critic", outputs: number) => {
    const sizes = [config.observationSize, ...config.hidden, outputs];
    return layerNames(name, config).flatMap(([matrix, bias], i) => [
      { name: matrix, shape: [sizes[i]!, sizes[i + 1]!] },
      { name: bias, shape: [sizes[i + 1]!] },
    ]);
  };
  const deviation = { name: logDeviationName, shape: [config.actionSize] };
  return [...network("actor", config.actionSize), deviation, ...network("critic", 1)];
}

/** Means start near zero, so that early actions explore around the middle of their range. */
export function initialActorCritic(
  config: ActorCriticConfig,
  { name, shape }: ParameterShape,
  index: number,
): Float32Array {
  const size = shape.reduce((a, b) => a * b, 1);
  if (name === logDeviationName) return new Float32Array(size).fill(config.initialLogDeviation);
  if (shape.length === 1) return new Float32Array(size);
  const last = name.startsWith(`actor.${config.hidden.length}.`);
  const deviation = (last ? 0.01 : 1) / Math.sqrt(shape[0]!);
  const stream = mix(config.seed, index);
  return Float32Array.from({ length: size }, (_, i) => deviation * normal(stream, i));
}
