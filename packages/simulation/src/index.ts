export {
  bestFixed,
  type CodingComparison,
  compareCoding,
  compareServices,
  compareSuites,
  type ServiceComparison,
} from "./actions/compare-actions.ts";
export type { StepFigures } from "./actions/completion-times.ts";
export { type BehindFixed, behindFixed, type PaperFigure, paperFigures } from "./actions/paper-figures.ts";
export { ActionScenario, actionScenarios } from "./actions/scenario.ts";
export type { SuiteComparison, SuiteShape } from "./actions/suite-step.ts";
export {
  compareMultiplex,
  type MultiplexComparison,
  type MultiplexDraw,
  shareDrawnRuns,
} from "./multiplex/compare-multiplex.ts";
export { DrawnRun, type DrawnStep, runShapes, slowBeside } from "./multiplex/drawn-run.ts";
export { type Beside, type PlannedRun, type RunBeside, simulateBeside } from "./multiplex/planned-runs.ts";
export { MultiplexScenario, multiplexScenarios } from "./multiplex/scenario.ts";
export type { SimulatedSpan, SimulatedTrace } from "./recorder.ts";
export type { RolloutBounds } from "./rollout/bounds.ts";
export { compareParts, leftOut, type PartsComparison } from "./rollout/compare-parts.ts";
export {
  compareRollouts,
  type RolloutComparison,
  reportPredictors,
  type WorkloadPredictor,
} from "./rollout/compare-rollouts.ts";
export { type Forecasting, learnedForecasting } from "./rollout/forecasts.ts";
export { RolloutScenario, rolloutScenarios } from "./rollout/scenario.ts";
export {
  chooseWay,
  type PastStep,
  simulateWay,
  type Throughput,
  type Way,
  type Workload,
  waysOf,
} from "./rollout/ways.ts";
export {
  type SimulatedComponent,
  type SimulatedDevice,
  type SimulationInput,
  type SimulationResult,
  simulate,
} from "./simulate.ts";
export type { SimulatedStep } from "./simulated-run.ts";
export { planVirtualCluster, type VirtualClusterOptions, type VirtualPlan } from "./virtual-cluster.ts";
export type { ComponentTraits } from "./workflow-model.ts";
