import {
  EmulatedEngine,
  EmulatedProfile,
  type GenerationEngine,
  type TrainingEngine,
  TransformerConfig,
  TransformerEngine,
} from "@treadle/engines";
import { z } from "zod";

/** The model, and what runs it: the embedded engine, or the emulated one where a profile of its costs is given. */
export const EngineConfig = z.strictObject({
  model: TransformerConfig,
  /** takes the time and memory that this profile says, and computes nothing */
  emulated: EmulatedProfile.optional(),
});
export type EngineConfig = z.infer<typeof EngineConfig>;

/**
 * An engine for generation and training; an emulated one is as fast as `numDevices` devices make it. Ranks of one seed
 * answer alike; how long they take varies by rank.
 */
export async function createEngine(
  config: EngineConfig,
  numDevices: number,
  seed: number,
  rank = 0,
): Promise<GenerationEngine & TrainingEngine> {
  if (!config.emulated) return TransformerEngine.create(config.model);
  const { vocabSize, contextLength } = config.model;
  return EmulatedEngine.create({ ...config.emulated, devices: numDevices, vocabSize, contextLength }, { seed, rank });
}
