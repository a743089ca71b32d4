/**
 * What workflows and workers import: `treadle`. One package to depend on, and so one copy of each class.
 * @module treadle
 */
export {
  type Completion,
  Episode,
  EpisodeGroup,
  type LossMetrics,
  Prompt,
  Sampling,
  Temperature,
  TreadleError,
  TurnReward,
} from "@treadle/contracts";
export * from "@treadle/runtime";
