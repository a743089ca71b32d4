import { randomUUID } from "node:crypto";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { type EngineFacts, TreadleError } from "@treadle/contracts";
import { checkModelFolder, checkWrittenFolder } from "@treadle/contracts/program-rights";
import {
  checkShared,
  decodeSeconds,
  EmulatedDevice,
  EmulatedEngine,
  type EmulatedEngineOptions,
  EmulatedGroup,
  EmulatedProfile,
  type GenerationEngine,
  ServerEngine,
  SglangConfig,
  SharedTorchEngine,
  TorchConfig,
  TorchEngine,
  type TrainingEngine,
  TransformerConfig,
  TransformerEngine,
  VllmConfig,
} from "@treadle/engines";
import type { Worker } from "@treadle/runtime";
import { z } from "zod";
import { createModuleEngine, ModuleEngineConfig } from "./module-engine.ts";

const mib = 2 ** 20;

/** Memory of each device, enforced over all processes of a node that share it. */
const DeviceMemory = z.strictObject({
  /** where processes record how much memory each of them holds, in one file for each device; made if it is missing */
  folder: z.string().min(1),
  sizeMiB: z.number().positive(),
});

/** How the ranks of a trainer wait for each other, as over NCCL. */
const Collectives = z.strictObject({
  /** where ranks record which collective each of them has come to, in one file for each group of them; made if it is missing */
  folder: z.string().min(1),
  /** that a rank waits for the others in a collective, before it ends with an error that names those which are missing */
  deadlineMs: z.number().positive().default(600_000),
  /** ranks, one after the other, that hold a model's tensors in parts: they meet in each call that computes; all ranks meet to step */
  tensorRanks: z.int().positive().default(1),
});

/**
 * What runs a model: the embedded engine in the worker's process, PyTorch in one of its own, or a server that generates,
 * beside PyTorch, which trains; or an engine of the project's own.
 */
export const EngineChoice = z.discriminatedUnion("kind", [
  z.strictObject({
    /** `embedded`, in the worker's process; `torch`, in one of its own; `sglang` or `vllm`, a server; `module`, one of the project's */
    kind: z.literal("embedded"),
  }),
  TorchConfig,
  SglangConfig,
  VllmConfig,
  ModuleEngineConfig,
]);
export type EngineChoice = z.infer<typeof EngineChoice>;

/** What trains or scores, where it is PyTorch; beside a server in a process of its own. */
export function torchOf(engine: EngineChoice | undefined): TorchConfig | undefined {
  if (isServer(engine)) return TorchConfig.parse({ ...engine.trainer, path: engine.model });
  return engine?.kind === "torch" ? engine : undefined;
}

/** The model, and what runs it; the emulated engine where a profile of its costs is given. */
export const EngineConfig = z.strictObject({
  /** its sizes, and how it is computed */
  model: TransformerConfig,
  /** what runs it; default: the embedded engine */
  engine: EngineChoice.optional(),
  /** takes the time and memory that this profile says, and computes nothing */
  emulated: EmulatedProfile.extend({
    /** refuses what does not fit on a device beside what others have there; without it everything fits */
    deviceMemory: DeviceMemory.optional(),
    /** ranks of a trainer meet in collectives, or hang until a deadline; without it none waits for another */
    collectives: Collectives.optional(),
  }).optional(),
});
export type EngineConfig = z.infer<typeof EngineConfig>;

/** What a token takes alone on so many devices, where the configuration says. */
export const tokenSecondsOf = ({ emulated }: EngineConfig, devices: number): number | undefined =>
  emulated && decodeSeconds(1, { ...emulated, devices });

/** What a component says of its engine that generates. */
export function generatorFacts(config: EngineConfig): EngineFacts {
  const { engine, emulated } = config;
  if (emulated || !isServer(engine)) return trainerFacts(config);
  const { kind, model, weightsFolder, loads } = engine;
  return { kind, modelFolder: model, readsFrom: weightsFolder, readsAdapters: loads === "adapter" };
}

/** What a component says of its engine that trains or scores. */
export function trainerFacts({ engine, emulated, model: { valueHead } }: EngineConfig): EngineFacts {
  if (emulated) return { kind: "emulated" };
  if (engine?.kind === "module") return { kind: "module" };
  const torch = torchOf(engine);
  if (!torch) return { kind: "embedded" };
  const { path, weightsBy, weightsFolder, collective, device, lora, process } = torch;
  const trainsAdapters = lora !== undefined;
  const weights = { weightsBy, collective, publishesIn: weightsFolder, sharesProcess: process === "shared" };
  return { kind: "torch", modelFolder: path, ...weights, device, trainsAdapters, valueHead };
}

const isAccelerator = (device: string): boolean => /(^|\/)(cuda|rocm):/.test(device);
/** Their numbers on their node. */
export const cudaDevices = (ids: readonly string[]): number[] =>
  ids.flatMap((id) => /(?:^|\/)cuda:(\d+)$/.exec(id)?.[1] ?? []).map(Number);
const isServer = (choice: EngineChoice | undefined): choice is SglangConfig | VllmConfig =>
  choice?.kind === "sglang" || choice?.kind === "vllm";

/** An engine for generation alone, made as `createEngine` makes its own. */
export async function createGenerationEngine(worker: Worker<EngineConfig>, seed: number): Promise<GenerationEngine> {
  const { config, rank, log, hostFiles } = worker;
  const devices = cudaDevices(worker.devices.ids);
  if (config.emulated || !isServer(config.engine)) return makeEngine(worker, seed, { generates: true, trains: false });
  checkModelFolder(config.engine.model, "engine.model");
  if (config.engine.weightsFolder !== undefined)
    checkWrittenFolder(config.engine.weightsFolder, "engine.weightsFolder");
  return ServerEngine.create(config.model, config.engine, {
    ...{ rank, devices, hostFiles },
    warn: (message) => log.warn(message),
    log: (line) => log.info(line),
  });
}

/**
 * An engine for generation and training, with no memory on its worker's devices before its first `restore`; an emulated one
 * is as fast as they make it. Ranks of one seed answer alike; how long they take varies by rank. On PyTorch it is sharded over the
 * accelerators of its rank, or as `engine.shards` says. `trains`: false where it only scores: it trains no adapter, and may share its
 * trainer's process.
 */
export const createEngine = (
  worker: Worker<EngineConfig>,
  seed: number,
  { trains = true }: { readonly trains?: boolean } = {},
): Promise<GenerationEngine & TrainingEngine> => makeEngine(worker, seed, { generates: false, trains });

async function makeEngine(
  worker: Worker<EngineConfig>,
  seed: number,
  { generates, trains }: { readonly generates: boolean; readonly trains: boolean },
): Promise<GenerationEngine & TrainingEngine> {
  const { config, component, rank, worldSize, hostFiles, log } = worker;
  const { ids } = worker.devices;
  if (!config.emulated) {
    const use = generates ? "generation" : trains ? "training" : "scoring";
    if (config.engine?.kind === "module") return createModuleEngine(worker, config.engine, { seed, use });
    const torch = torchOf(config.engine);
    if (torch) {
      if (torch.weightsFolder !== undefined) checkWrittenFolder(torch.weightsFolder, "engine.weightsFolder");
      if (torch.path !== undefined)
        checkModelFolder(torch.path, isServer(config.engine) ? "engine.model" : "engine.path");
      const accelerators = ids.filter(isAccelerator).length;
      if (generates && accelerators > 1)
        log.warn(
          `the rank has '${accelerators}' accelerators, and the engine on PyTorch generates on one; set placement.components.${component} to ranks of one, or let an SGLang or vLLM server generate`,
        );
      const shards = torch.shards !== "auto" ? torch.shards : torch.device === "cpu" ? 1 : Math.max(1, accelerators);
      const processes = generates ? 1 : shards;
      const offer = { component, rank, worldSize, devices: ids };
      if (torch.process === "shared") {
        checkShared(torch, shards, generates);
        if (!trains)
          return SharedTorchEngine.attach(config.model, torch, {
            rank: offer,
            hostFiles,
            log: (line) => log.warn(line),
          });
      }
      const { address } = worker.messages;
      return TorchEngine.create(config.model, torch, {
        loaded: false,
        ...{ hostFiles, processes, adapts: trains, offer, address, use },
      });
    }
    return TransformerEngine.create(config.model);
  }
  const { vocabSize, contextLength } = config.model;
  const { deviceMemory, collectives, ...costs } = config.emulated;
  const profile = { ...costs, devices: ids.length, vocabSize, contextLength };
  const devices = deviceMemory && openDevices(ids, deviceMemory);
  const groups = collectives && (await openGroups(worker, collectives));
  const own = { seed, rank, devices, component: `${component}/${rank}`, loaded: false };
  return EmulatedEngine.create(profile, { ...own, ...groups });
}

/** Ranks that start together agree on a meeting of theirs (EG2). */
async function openGroups(
  worker: Worker<EngineConfig>,
  { folder, deadlineMs, tensorRanks }: z.infer<typeof Collectives>,
): Promise<Pick<EmulatedEngineOptions, "group" | "tensorGroup">> {
  const { component, rank, worldSize, messages } = worker;
  checkWrittenFolder(folder, "emulated.collectives.folder");
  const refuse = (what: string) => {
    throw new TreadleError("config.invalid", `'emulated.collectives' of '${component}': ${what}`);
  };
  if ((worker.constructor as typeof Worker).restart !== "group")
    refuse("its ranks start one by one, and would wait for one that has started again; only ranks of a trainer meet");
  if (worldSize % tensorRanks !== 0)
    refuse(
      `'tensorRanks' is '${tensorRanks}', of which the component's '${worldSize}' ranks are no multiple; set its ranks in placement.components`,
    );
  mkdirSync(folder, { recursive: true });
  const meeting = await messages.broadcast(randomUUID());
  const open = (name: string, size: number, firstRank: number) =>
    new EmulatedGroup({ size, firstRank, deadlineMs, shared: { path: join(folder, `${component}-${name}`), meeting } });
  const firstRank = rank - (rank % tensorRanks);
  return {
    group: open("all", worldSize, 0),
    ...(tensorRanks > 1 ? { tensorGroup: open(`tensor-${firstRank}`, tensorRanks, firstRank) } : {}),
  };
}

function openDevices(ids: readonly string[], { folder, sizeMiB }: z.infer<typeof DeviceMemory>): EmulatedDevice[] {
  checkWrittenFolder(folder, "emulated.deviceMemory.folder");
  mkdirSync(folder, { recursive: true });
  return ids.map((name) => {
    const path = join(folder, name.replaceAll(/[^\w-]/g, "-"));
    return new EmulatedDevice({ name, capacityBytes: sizeMiB * mib, path });
  });
}
