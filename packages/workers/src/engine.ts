import { mkdirSync } from "node:fs";
import { join } from "node:path";
import {
  EmulatedDevice,
  EmulatedEngine,
  EmulatedProfile,
  type GenerationEngine,
  TorchConfig,
  TorchEngine,
  type TrainingEngine,
  TransformerConfig,
  TransformerEngine,
} from "@treadle/engines";
import type { Worker } from "@treadle/runtime";
import { z } from "zod";

const mib = 2 ** 20;

/** Memory of each device, enforced over all processes of a node that share it. */
const DeviceMemory = z.strictObject({
  /** where the processes keep who has how much, a file for each device; made where there is none */
  folder: z.string().min(1),
  sizeMiB: z.number().positive(),
});

/** What runs a model: the embedded engine in the worker's process, or PyTorch in one of its own. */
export const EngineChoice = z.discriminatedUnion("kind", [
  z.strictObject({ kind: z.literal("embedded") }),
  TorchConfig,
]);
export type EngineChoice = z.infer<typeof EngineChoice>;

/** The model, and what runs it; the emulated engine where a profile of its costs is given. */
export const EngineConfig = z.strictObject({
  model: TransformerConfig,
  /** what runs it; default: the embedded engine */
  engine: EngineChoice.optional(),
  /** takes the time and memory that this profile says, and computes nothing */
  emulated: EmulatedProfile.extend({
    /** refuses what does not fit on a device beside what others have there; without it everything fits */
    deviceMemory: DeviceMemory.optional(),
  }).optional(),
});
export type EngineConfig = z.infer<typeof EngineConfig>;

/**
 * An engine for generation and training, with no memory on its worker's devices before its first `restore`; an emulated one
 * is as fast as they make it. Ranks of one seed answer alike; how long they take varies by rank.
 */
export async function createEngine(
  { config, devices: { ids }, component, rank }: Worker<EngineConfig>,
  seed: number,
): Promise<GenerationEngine & TrainingEngine> {
  if (!config.emulated && config.engine?.kind === "torch") return TorchEngine.create(config.model, config.engine);
  if (!config.emulated) return TransformerEngine.create(config.model);
  const { vocabSize, contextLength } = config.model;
  const { deviceMemory, ...costs } = config.emulated;
  const profile = { ...costs, devices: ids.length, vocabSize, contextLength };
  const devices = deviceMemory && openDevices(ids, deviceMemory);
  return EmulatedEngine.create(profile, { seed, rank, devices, component: `${component}/${rank}`, loaded: false });
}

function openDevices(ids: readonly string[], { folder, sizeMiB }: z.infer<typeof DeviceMemory>): EmulatedDevice[] {
  mkdirSync(folder, { recursive: true });
  return ids.map((name) => {
    const path = join(folder, name.replaceAll(/[^\w-]/g, "-"));
    return new EmulatedDevice({ name, capacityBytes: sizeMiB * mib, path });
  });
}
