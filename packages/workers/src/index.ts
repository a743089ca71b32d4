export { ActorConfig, ActorWorker } from "./actor/actor-worker.ts";
export { ControlActorConfig, ControlActorWorker } from "./actor/control-actor-worker.ts";
export { Demonstration, drawDemonstrations, ImitationConfig, type ImitationOptions } from "./actor/imitation.ts";
export { DataConfig, FileDataConfig, ModuleDataConfig } from "./data/data-config.ts";
export { type Dataset, openDataset, type PromptSourceOptions } from "./data/dataset.ts";
export type { CreateDataset, DatasetContext, DatasetRow, DrawnRows, OwnDataset } from "./data/module-dataset.ts";
export type { Draw, PromptSource } from "./data/prompt-source.ts";
export type { DatasetOptions } from "./data/row-collection.ts";
export { EngineChoice, EngineConfig, torchOf } from "./engine.ts";
export { EngineWorker, isEngineFile, TrainerWorker } from "./engine-worker.ts";
export { InferenceConfig, InferenceWorker } from "./inference/inference-worker.ts";
export { type ComparedToken, type Comparison, compare, type Divergence } from "./mismatch/compare.ts";
export { type KeptBatch, KeptFacts, type KeptStep, keptSteps, newestKept, readKept } from "./mismatch/kept-batch.ts";
export { scoreEpisodes } from "./mismatch/score-episodes.ts";
export type { CreateEngine, EngineContext, EngineUse } from "./module-engine.ts";
export { AgentRolloutConfig, AgentRolloutWorker, CallSyntax } from "./rollout/agent-rollout-worker.ts";
export { CallOrder, historyKey } from "./rollout/call-order.ts";
export { ControlRolloutConfig, ControlRolloutWorker } from "./rollout/control-rollout-worker.ts";
export { accuracyOf, EvaluationConfig, type EvaluationCount } from "./rollout/evaluation.ts";
export { RolloutConfig } from "./rollout/generation-worker.ts";
export { leavesPrompts, mostStaleness, type PredictionMetrics, RolloutOrderConfig } from "./rollout/order-config.ts";
export { RolloutWorker } from "./rollout/rollout-worker.ts";
export { SharedRollout, type SharedRolloutOptions } from "./rollout/shared-rollout.ts";
export { promptsOfStep, unfinishedPrompts } from "./rollout/step-prompts.ts";
export { toEpisode } from "./rollout/to-episode.ts";
export { builtInEnvironments } from "./simulator/built-in.ts";
export type {
  Drawing,
  EnvironmentFactory,
  EnvironmentPlugin,
  EnvironmentRegistry,
  EnvironmentScale,
  Transition,
  VectorEnvironment,
} from "./simulator/environment.ts";
export { Action, Observation, Trajectory } from "./simulator/items.ts";
export { createMujocoEnvironment, type MujocoState, type MujocoTask } from "./simulator/mujoco-environment.ts";
export { SimulatorConfig, SimulatorWorker } from "./simulator/simulator-worker.ts";
export {
  type CreateTokenizer,
  ModuleTokenizerConfig,
  type OwnTokenizer,
  type TokenizerContext,
} from "./tokenizer/module-tokenizer.ts";
export { createTokenizer, openTokenizer, TokenizerChoice } from "./tokenizer/tokenizer-choice.ts";
export { TokenizerFolder } from "./tokenizer/tokenizer-folder.ts";
export type { ToolCall, ToolReport, ToolResult } from "./tool/items.ts";
export { RewardModelConfig } from "./tool/reward-model-config.ts";
export {
  AcceleratedRewardModelWorker,
  launchRewardModels,
  type RewardModelReport,
  RewardModelWorker,
} from "./tool/reward-model-worker.ts";
export { ActionsConfig, ToolConfig } from "./tool/tool-config.ts";
export { ToolSession } from "./tool/tool-session.ts";
export { ToolWorker } from "./tool/tool-worker.ts";
export { pullWeights } from "./weights.ts";
