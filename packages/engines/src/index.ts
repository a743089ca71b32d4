export { ActorCriticEngine } from "./embedded/actor-critic.ts";
export { ActorCriticConfig } from "./embedded/actor-critic-config.ts";
export { TransformerConfig } from "./embedded/transformer-config.ts";
export { TransformerEngine } from "./embedded/transformer-engine.ts";
export { EmulatedDevice } from "./emulated/emulated-device.ts";
export { EmulatedEngine, type EmulatedEngineOptions } from "./emulated/emulated-engine.ts";
export { EmulatedGroup } from "./emulated/emulated-group.ts";
export { decodeSeconds, EmulatedProfile } from "./emulated/profile.ts";
export type {
  Actions,
  ActOptions,
  BegunCompletion,
  CompletionPiece,
  ControlBatch,
  ControlEngine,
  ControlLoss,
  CutCompletion,
  DisplaceRule,
  Engine,
  EngineMemory,
  FileToLoad,
  FileToSave,
  GenerateOptions,
  GenerationEngine,
  GenerationOrder,
  JoiningCompletion,
  OptimStep,
  PiecesToLoad,
  Publication,
  SavedPieces,
  TokenRows,
  Trainable,
  TrainingEngine,
} from "./engine.ts";
export { OnNewWeights } from "./engine.ts";
export { type ExportedModel, type ExportOptions, exportModel, ofEmbedded } from "./export/export-model.ts";
export { sealWeights, weightsIdOf } from "./parameters.ts";
export type { Pieces } from "./pieces.ts";
export { decodeArrays, encodeArrays, type NamedArrays } from "./server/safetensors.ts";
export { SglangConfig, VllmConfig } from "./server/server-config.ts";
export { ServerEngine, type ServerOptions } from "./server/server-engine.ts";
export { type InstallableServer, installableServers } from "./server/server-launchers.ts";
export { checkShared } from "./torch/module-offer.ts";
export { SharedTorchEngine } from "./torch/shared-torch-engine.ts";
export { TorchConfig } from "./torch/torch-config.ts";
export { TorchEngine } from "./torch/torch-engine.ts";
export type { EngineAddress } from "./torch/torch-links.ts";
export { type EngineUse, torchPackageFolder } from "./torch/torch-process.ts";
export type { WorkSums } from "./work-meter.ts";
