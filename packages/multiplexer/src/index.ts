import type { Problem } from "@treadle/contracts";
import { multiplexProblem } from "./solve.ts";

export { type Action, actionsOf } from "./action.ts";
export { type BalanceAnswer, BalanceProblem, balance } from "./balance.ts";
export { Effort } from "./effort.ts";
export { compile, type SubStageGraph } from "./graph.ts";
export { type LiveMethod, liveMethods } from "./live/beside-graph.ts";
export { CoRunner, type CoRunnerOptions } from "./live/co-runner.ts";
export { SlowdownModel } from "./live/slowdown-model.ts";
export { lookahead } from "./lookahead.ts";
export { MergeProblem, type MergeRow, merge } from "./merge.ts";
export { MultiplexState } from "./multiplex-state.ts";
export { playout } from "./playout.ts";
export { greedy, mux, type Policy, temporal } from "./policies.ts";
export { MultiplexProblem } from "./problem.ts";
export { NamedDecision, type ReplayAnswer, replay } from "./replay.ts";
export { type Segment, SegmentProblem, segment } from "./segment.ts";
export { type MultiplexAnswer, type MultiplexStats, multiplexMethods, solveMultiplex } from "./solve.ts";
export { SubStage } from "./substage.ts";

/** What `treadle solve` offers from this package, by name. */
export const problems = { multiplex: multiplexProblem } as const satisfies Record<string, Problem>;
