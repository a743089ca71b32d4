export { sealWeights } from "./embedded/parameters.ts";
export { TransformerConfig } from "./embedded/transformer-config.ts";
export { TransformerEngine, type WarmUp } from "./embedded/transformer-engine.ts";
export type {
  Engine,
  EngineMemory,
  GenerateOptions,
  GenerationEngine,
  OptimStep,
  TokenRows,
  Trainable,
  TrainingEngine,
} from "./engine.ts";
