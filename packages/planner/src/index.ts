import type { Problem } from "@treadle/contracts";
import { planProblem } from "./plan/solve.ts";

export { checkWishes } from "./auto/check-wishes.ts";
export { type CycleModel, cycleOf, equalPart, type Flow, turnsOf } from "./auto/cycle-model.ts";
export type { PlanFromProfileOptions, PlannedMode } from "./auto/laid-plans.ts";
export { measuredSeconds, pointOf } from "./auto/measured-time.ts";
export type { MissingMode } from "./auto/missing-modes.ts";
export type { MoreDevices } from "./auto/more-devices.ts";
export { type PlanFromProfile, planFromProfile } from "./auto/plan-from-profile.ts";
export type { PlanTimeline, TimelineLane, TimelineSegment } from "./auto/plan-timeline.ts";
export { predictPlan } from "./auto/predict-plan.ts";
export { type PlanTarget, type ProfileProblem, planProblemOf } from "./auto/profile-problem.ts";
export { overheadOf } from "./auto/step-overhead.ts";
export { hiddenSeconds, pieceOf, streamedParts } from "./auto/streamed-parts.ts";
export { type NearestPlacement, resolvePlacement } from "./placement.ts";
export { type PlacementExpression, parsePlacement } from "./placement-grammar.ts";
export { PlacementComponent, PlacementInput } from "./placement-input.ts";
export { formatBytes, refuseDegrees } from "./placement-ranks.ts";
export { withoutDevices, withSlots } from "./placement-slots.ts";
export { brokenWishes, freeDevices, withWishes } from "./placement-wishes.ts";
export { evaluateSchedule } from "./plan/evaluate.ts";
export { compileModel, type PlanModel } from "./plan/model.ts";
export {
  ComponentTime,
  type EvalAnswer,
  EvalProblem,
  type PlanAlternative,
  type PlanAnswer,
  type PlanMode,
  PlanNode,
  PlanProblem,
  type PlanStats,
  Schedule,
} from "./plan/problem.ts";
export { modeOf } from "./plan/schedule-mode.ts";
export { type PlanMethod, planMethods } from "./plan/search-mode.ts";
export { solvePlan } from "./plan/solve.ts";
export { traceFlow } from "./profile/flow-trace.ts";
export { type KnownComponent, knownComponents } from "./profile/known-components.ts";
export { certaintyOf, describeCertainty, standardError, type TrialStakes } from "./profile/plan-trials.ts";
export { type ComponentTraits, ProfileBuilder, type SwapCost } from "./profile/profile-builder.ts";
export { usableDevices } from "./profile/profile-probes.ts";
export { type PlanCandidate, type PlanChange, ReplannerState } from "./profile/replanner-state.ts";
export { layoutOf, type RunningLayout, usedBy } from "./profile/running-layout.ts";
export type { ComponentLayout } from "./profile/step-samples.ts";
export { type StretchOf, stretchOf } from "./profile/take-stretch.ts";
export { itemSpread } from "./profile/unevenness.ts";

export { type Calibration, type Correction, calibrationOf, type KindOfWork, sizesOf } from "./rehearsal/calibration.ts";
export { deviceNames, figuresNameOf, figuresOf } from "./rehearsal/device-figures.ts";
export type { ModelComponent } from "./rehearsal/estimate.ts";
export { modelShapeOf } from "./rehearsal/model-shape.ts";
export {
  isRehearsed,
  type Rehearsal,
  type RehearsalSetting,
  type RehearsedPart,
  rehearse,
  rehearsedDevices,
  withArithmetic,
} from "./rehearsal/rehearse.ts";
export { areSameWays, rehearsedWays, slowestWays, type WeightWays } from "./rehearsal/weight-ways.ts";

export { type ModelEngine, type WeightPath, weightPaths } from "./weights/weight-paths.ts";

/** What `treadle solve` offers from this package, by name. */
export const problems = { plan: planProblem } as const satisfies Record<string, Problem>;
