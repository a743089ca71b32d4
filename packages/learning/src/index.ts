export {
  type Algorithm,
  type Normalisation,
  type PolicyGradientLoss,
  sequenceWeight,
  type TrainSample,
} from "./algorithms/algorithm.ts";
export {
  AlgorithmConfig,
  type AlgorithmName,
  algorithmNames,
  checkGroupSize,
  type KlConfig,
  parseAlgorithmConfig,
} from "./algorithms/config.ts";
export { createAlgorithm } from "./algorithms/create.ts";
export type { FilterResult } from "./algorithms/filter.ts";
export { overlongReward } from "./algorithms/group-relative.ts";
export {
  advantageMoments,
  type Moments,
  mergeMoments,
  momentsOf,
  normaliseAdvantages,
  standardiser,
} from "./algorithms/normalise.ts";
export {
  type ReferenceOptions,
  type ReferenceScores,
  type ReferenceStep,
  referenceStep,
} from "./algorithms/reference-step.ts";
export { parseConfig } from "./config.ts";
export { checkEpisode, countPolicyTokens, isReward, largestReward } from "./episode.ts";
export { type GaeOptions, generalisedAdvantages, type Rollouts } from "./gae.ts";
export { LearningRateConfig, LearningRateSchedule, learningRateAt } from "./learning-rate.ts";
export { type MinibatchConfig, minibatchesOf } from "./minibatches.ts";
export {
  emptyBatch,
  type PackedBatch,
  type PackOptions,
  packForScoring,
  packSamples,
  packSupervised,
  type SupervisedSequence,
  unpackEntries,
} from "./pack.ts";
export { type Plugin, PluginRegistry } from "./plugin-registry.ts";
export { createRandom, hashString, type Random } from "./random.ts";
export {
  type ReferenceControlOptions,
  type ReferenceControlScores,
  type ReferenceTrajectory,
  referenceControlStep,
} from "./reference-control-step.ts";
export { type ReferenceLoss, referenceLoss } from "./reference-loss.ts";
export { builtInRewards } from "./rewards/built-in.ts";
export {
  answerOf,
  type Reward,
  type RewardLog,
  type RewardPlugin,
  type RewardRegistry,
  type Score,
  type ScoredCompletion,
  type ScoredTurn,
  scoreCompletion,
  scoreTurns,
} from "./rewards/reward.ts";
export {
  type CorrectedSamples,
  correctRollout,
  divergenceOf,
  type Mismatch,
  RolloutCorrectionConfig,
  type WeightRule,
} from "./rollout-correction.ts";
export {
  findStaleGroups,
  oldestPolicyVersion,
  type StaleGroup,
  wasSampledBefore,
} from "./staleness.ts";
export {
  type Accuracy,
  type ArithmeticProblem,
  type ArithmeticSplit,
  type ArithmeticTask,
  ArithmeticTaskConfig,
  arithmeticAlphabet,
  createArithmeticTask,
  measureAccuracy,
} from "./tasks/arithmetic.ts";
export { ChainTaskConfig, createChainTask, firstDone, type PromptTask } from "./tasks/chains.ts";
export { createCharacterTokenizer } from "./tasks/character-tokenizer.ts";
export { demonstrationOf } from "./tasks/demonstration.ts";
export type { ChatOptions, Tokenizer } from "./tokenizer.ts";
