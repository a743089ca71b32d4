import { type Problem, readProblem, type SolveOptions, TreadleError, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import { DeadlinePassed } from "./bounds.ts";
import { costSchedule, modeOf, solveEval } from "./evaluate.ts";
import { explainPlan, limitsOf } from "./explain.ts";
import type { FastResult } from "./fast.ts";
import { operationsOf } from "./model.ts";
import {
  type EvalAnswer,
  EvalProblem,
  type PlanAlternative,
  type PlanAnswer,
  type PlanMode,
  PlanProblem,
  type PlanStats,
} from "./problem.ts";
import { Models, planMethods, type SearchOptions, searchMode } from "./search-mode.ts";

/**
 * The schedule of least time (RLinf §3.4, Alg. 1), the best of each pure mode, and in words why. Pure: the clock is
 * handed in. `fast` and `naive` return the same time; with `deadlineMs` (and a clock) `fast` stops early with the best
 * found, and `stats.bound` and `stats.gap` say how far from the least it can be. Throws `problem.invalid`.
 */
export function solvePlan(input: unknown, options: SolveOptions = {}): PlanAnswer {
  const { method = planMethods[0], nowMs, deadlineMs } = options;
  if (method !== "fast" && method !== "naive") throw unknownMethod(method, planMethods);
  if (deadlineMs !== undefined && nowMs === undefined) {
    throw new TreadleError("problem.invalid", `deadlineMs: '${deadlineMs}' needs a clock; hand in nowMs too`);
  }
  const problem = readProblem(PlanProblem, input);
  const startedMs = nowMs?.() ?? 0;
  const checkDeadline = (): void => {
    if (nowMs !== undefined && deadlineMs !== undefined && nowMs() - startedMs > deadlineMs) throw new DeadlinePassed();
  };
  const models = new Models(problem);
  const search = (mode: PlanMode, aim: SearchOptions["aim"], least?: number): FastResult =>
    searchMode(models, { operations: operationsOf(mode), method, aim, least, checkDeadline });
  const whole = search("hybrid", "least");
  const modeOfWhole = whole.schedule === null ? undefined : modeOf(whole.schedule);
  // What is the best of all is the best of its mode; of the runners-up only the temporal one, which is cheap, is proven.
  const found = [whole];
  if (modeOfWhole !== "spatial") found.push(search("spatial", "nearly", whole.time));
  if (modeOfWhole !== "temporal") found.push(search("temporal", "least"));
  if (modeOfWhole !== "hybrid" && whole.schedule !== null) found.push(search("hybrid", "mixed", whole.time));
  const milliseconds = (nowMs?.() ?? 0) - startedMs;

  const best = found.reduce((a, b) => (b.time < a.time ? b : a));
  const { bound } = whole;
  const stats: PlanStats = {
    milliseconds,
    method,
    exact: bound >= best.time,
    bound: Number.isFinite(bound) ? Math.min(bound, best.time) : null,
    gap: bound < best.time && best.schedule !== null ? (best.time - bound) / best.time : 0,
    states: found.reduce((sum, { states }) => sum + states, 0),
    candidates: found.reduce((sum, { candidates }) => sum + candidates, 0),
  };
  const model = models.of(models.relaxed, "step");
  if (best.schedule === null) {
    const explanation = explainPlan(model, null, [], stats);
    const none = { time: null, schedule: null, mode: null, alternatives: [], limits: [] };
    return { feasible: false, ...none, explanation, stats };
  }
  const { time, schedule } = best;
  const alternatives: PlanAlternative[] = [];
  for (const result of found) {
    if (result.schedule === null) continue;
    const mode = modeOf(result.schedule);
    const known = alternatives.findIndex((a) => a.mode === mode);
    if (known >= 0 && alternatives[known]!.time <= result.time) continue;
    if (known >= 0) alternatives.splice(known, 1);
    alternatives.push({ mode, time: result.time, schedule: result.schedule });
  }
  alternatives.sort((a, b) => a.time - b.time);
  const explanation = explainPlan(model, schedule, alternatives, stats);
  const limits = limitsOf(costSchedule(model, schedule));
  return { feasible: true, time, schedule, mode: modeOf(schedule), alternatives, explanation, limits, stats };
}

/** `treadle solve plan`. With `"op": "eval"` it costs a given schedule instead. */
export const planProblem: Problem = {
  schema: z.union([EvalProblem, PlanProblem]),
  methods: planMethods,
  solve(input: unknown, options?: SolveOptions): PlanAnswer | EvalAnswer {
    const isEval = typeof input === "object" && input !== null && "op" in input;
    return isEval ? solveEval(input, options) : solvePlan(input, options);
  },
};
