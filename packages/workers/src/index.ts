export { ActorConfig, ActorWorker, Demonstration, type ImitationOptions } from "./actor/actor-worker.ts";
export { EngineConfig } from "./engine.ts";
export { InferenceConfig, InferenceWorker } from "./inference/inference-worker.ts";
export { type EvaluationCount, RolloutConfig, RolloutWorker } from "./rollout/rollout-worker.ts";
export { pullWeights } from "./weights.ts";
