import type { Problem } from "@treadle/contracts";
import { allocateProblem } from "./allocate.ts";
import { placeProblem } from "./place.ts";
import { rolloutProblem } from "./rollout/solve.ts";

export { type AllocateAnswer, AllocateProblem, allocateMethods, allocateRollout, solveAllocate } from "./allocate.ts";
export { allocatedDegrees, degreesThatFit, equalDegrees } from "./degrees/degree-lists.ts";
export { type DegreesDecision, type DegreesSituation, DegreesState } from "./degrees/degrees-state.ts";
export { joinParts, PlayedEpisode, PlayedStep, replaySeconds, type SharingWay } from "./degrees/played-step.ts";
export { Interference, interferenceFactor, neverDecreases } from "./interference.ts";
export { descendingOrder } from "./lengths.ts";
export { EpisodeOrder, type EpisodeOrderOptions } from "./live/episode-order.ts";
export {
  type GroupConditions,
  GroupPlacement,
  type LiveMigration,
  type LivePlacement,
  liveMigrations,
  livePlacements,
  mostTold,
  type ToldEpisodes,
} from "./live/group-placement.ts";
export { type CompanyMark, MeasuredInterference } from "./live/measured-interference.ts";
export { type EpisodePhase, EpisodeRouter, type RouterOptions, type RouterOrder } from "./live/router.ts";
export { type Oversampling, type TailOrder, TailRace } from "./live/tail-race.ts";
export { type StepGiven, type TailRound, tailRound } from "./live/tail-rounds.ts";
export { type PlaceAnswer, PlaceProblem, type PlaceStats, placeMethods, solvePlace } from "./place.ts";
export { evaluatePredictor, learnSteps, type RecordedEpisode } from "./predict/evaluate.ts";
export { type ModelName, modelNames } from "./predict/models.ts";
export {
  type BegunProgress,
  type EpisodePrediction,
  EpisodePredictor,
  type EpisodeStart,
  type Estimate,
  PredictorState,
  quantileOf,
} from "./predict/predictor.ts";
export type { EpisodeLimits } from "./predict/progress.ts";
export type { LogNormal } from "./predict/prompt-model.ts";
export { PredictionScores, type PredictorReport, type PredictorRow } from "./predict/scores.ts";
export { normalFrom, seededRandom } from "./random.ts";
export type { Forecast } from "./rollout/events.ts";
export { type MigrationRule, migrationRules } from "./rollout/migration.ts";
export type { RolloutAnswer } from "./rollout/outcome.ts";
export { RolloutProblem, Scheduler } from "./rollout/problem.ts";
export { rolloutMethods, simulateRollout, solveRollout } from "./rollout/solve.ts";
export { WorkerLoads } from "./rollout/worker-loads.ts";
export { type DrawnWorkload, drawEpisodes, type WorkloadShape, workloadNames, workloadShapes } from "./workload.ts";

/** What `treadle solve` offers from this package, by name. */
export const problems = {
  place: placeProblem,
  allocate: allocateProblem,
  rollout: rolloutProblem,
} as const satisfies Record<string, Problem>;
