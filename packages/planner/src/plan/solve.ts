import { type Problem, readProblem, type SolveOptions, TreadleError, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import { remedyOf, wishedOf, withoutWishes } from "./blamed-wishes.ts";
import { DeadlinePassed } from "./bounds.ts";
import { costSchedule, solveEval } from "./evaluate.ts";
import { explainPlan, limitsOf } from "./explain.ts";
import { type FastResult, nothingFound } from "./fast.ts";
import { idleIn } from "./plan-wishes.ts";
import {
  type EvalAnswer,
  EvalProblem,
  type PlanAlternative,
  type PlanAnswer,
  type PlanMode,
  PlanProblem,
  type PlanStats,
  planModes,
} from "./problem.ts";
import { modeAmong } from "./schedule-mode.ts";
import { Models, planMethods, type SearchOptions, searchMode } from "./search-mode.ts";

/**
 * The schedule of least time (RLinf §3.4, Alg. 1), the best of each pure mode, and in words why. Pure: the clock is
 * handed in. `fast` and `naive` return the same time; with `deadlineMs` (and a clock) `fast` stops early with the best
 * found, and `stats.bound` and `stats.gap` say how far from the least it can be. Throws `problem.invalid`.
 */
export function solvePlan(input: unknown, options: SolveOptions = {}): PlanAnswer {
  return solve(input, options);
}

/** `whyNot`: whether the explanation of a problem without a schedule tells wishes from what the components need. */
function solve(input: unknown, options: SolveOptions, { whyNot = true } = {}): PlanAnswer {
  const problem = readProblem(PlanProblem, input);
  const { method = planMethods[0], nowMs, deadlineMs } = options;
  if (method !== "fast" && method !== "naive") throw unknownMethod(method, planMethods);
  if (deadlineMs !== undefined && nowMs === undefined) {
    throw new TreadleError("problem.invalid", `deadlineMs: '${deadlineMs}' needs a clock; hand in nowMs too`);
  }
  const startedMs = nowMs?.() ?? 0;
  // Whose search the deadline cut short; other limits do so, too, which more time would not move.
  const late = new Set<SearchOptions["mode"]>();
  let searching: SearchOptions["mode"] = "any";
  const checkDeadline = (): void => {
    if (nowMs === undefined || deadlineMs === undefined || nowMs() - startedMs <= deadlineMs) return;
    late.add(searching);
    throw new DeadlinePassed();
  };
  const searchIn = (within: Models, how: Pick<SearchOptions, "mode" | "least" | "full">): FastResult => {
    searching = how.mode;
    return searchMode(within, { ...how, method, checkDeadline });
  };
  const models = new Models(problem);
  const search = (mode: SearchOptions["mode"], least?: number, full = false): FastResult =>
    searchIn(models, { mode, least, full });
  const searched: { readonly mode: PlanMode | undefined; readonly result: FastResult }[] = [];
  const reasons: string[] = [];
  const isEach = problem.useAll || problem.modes.length < planModes.length;
  if (problem.useAll) {
    const anything = new Models({ ...problem, useAll: false });
    for (const mode of problem.modes) {
      const free = searchIn(anything, { mode });
      const idle = free.schedule === null ? [] : idleIn(problem, free.schedule);
      reasons.push(...idle);
      const result = idle.length === 0 ? free : search(mode, Math.max(free.bound, Number.MIN_VALUE), true);
      searched.push({ mode, result });
    }
  } else if (isEach) for (const mode of problem.modes) searched.push({ mode, result: search(mode) });
  else {
    // What is the best of all is the best of its mode.
    const any = search("any");
    const modeOfAny = any.schedule === null ? undefined : modeAmong(problem, any.schedule);
    searched.push({ mode: modeOfAny, result: any });
    for (const mode of planModes) {
      if (mode === modeOfAny || (mode === "hybrid" && any.schedule === null)) continue;
      searched.push({ mode, result: search(mode, any.bound) });
    }
  }
  const found = searched.map(({ result }) => result);
  const milliseconds = (nowMs?.() ?? 0) - startedMs;

  const kept = found.filter(({ schedule }) => !schedule || !problem.useAll || idleIn(problem, schedule).length === 0);
  const nothing = { ...nothingFound, bound: Number.POSITIVE_INFINITY };
  const best = kept.reduce((a, b) => (b.time < a.time ? b : a), nothing);
  const bound = isEach ? Math.min(...found.map((each) => each.bound)) : found[0]!.bound;
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
  /** A search of any mode stands for the one of hybrids, which is not asked for where nothing was found. */
  const unsearchedOf = (known: readonly PlanMode[]): PlanMode[] =>
    problem.modes.filter((mode) => !known.includes(mode) && (late.has(mode) || late.has("any")));
  if (best.schedule === null) {
    const unsearched = stats.exact ? [] : unsearchedOf([]);
    const isExplained = stats.exact && reasons.length > 0;
    const isAsked = whyNot && stats.exact && !isExplained && wishedOf(problem).length > 0;
    const wishless = isAsked ? searchIn(new Models(withoutWishes(problem)), { mode: "any" }) : undefined;
    const isWishes = wishless === undefined ? undefined : isProven(wishless);
    const explained = isExplained ? [] : explainPlan(model, null, [], stats, { unsearched, isWishes });
    const explanation = [...reasons, ...explained];
    const none = { time: null, schedule: null, mode: null, alternatives: [], limits: [], empty: [] };
    return { feasible: false, ...none, unsearched, explanation, stats };
  }
  const { time, schedule } = best;
  const alternatives: PlanAlternative[] = [];
  for (const result of kept) {
    if (result.schedule === null) continue;
    const mode = modeAmong(problem, result.schedule);
    const known = alternatives.findIndex((a) => a.mode === mode);
    if (known >= 0 && alternatives[known]!.time <= result.time) continue;
    if (known >= 0) alternatives.splice(known, 1);
    const { time: seconds, schedule: own } = result;
    const least = Math.min(seconds, Math.max(result.bound, bound));
    alternatives.push({ mode, time: seconds, schedule: own, proven: least >= seconds, bound: least });
  }
  alternatives.sort((a, b) => a.time - b.time);
  const none = searched.filter(({ mode, result }) => mode !== undefined && isProvenEmpty(problem, mode, result));
  const empty = none.map(({ mode }) => mode!);
  const unsearched = unsearchedOf([...empty, ...alternatives.map(({ mode }) => mode)]);
  const explanation = explainPlan(model, schedule, alternatives, stats, { empty, unsearched });
  const limits = limitsOf(costSchedule(model, schedule));
  const modes = { mode: modeAmong(problem, schedule), alternatives, empty, unsearched };
  return { feasible: true, time, schedule, ...modes, explanation, limits, stats };
}

/** Nobody waits longer for a remedy. */
const remedyMs = 2000;

/** What to do about a problem that is proven to have no schedule, as far as its wishes are why. */
export function wishesToDrop(problem: PlanProblem, { nowMs, deadlineMs = remedyMs }: SolveOptions = {}): string[] {
  const startedMs = nowMs?.() ?? 0;
  const remedy = remedyOf(problem, (without, numLeft) => {
    const leftMs = nowMs && deadlineMs - (nowMs() - startedMs);
    if (leftMs !== undefined && leftMs <= 0) return undefined;
    const limits = leftMs === undefined ? {} : { nowMs, deadlineMs: leftMs / numLeft };
    const { feasible, stats } = solve(without, limits, { whyNot: false });
    return feasible || !stats.exact ? feasible || undefined : false;
  });
  return remedy === undefined ? [] : [remedy];
}

/** Whether there is a schedule; undefined where the search did not come to its end. */
const isProven = ({ schedule, bound }: FastResult): boolean | undefined =>
  schedule !== null ? true : bound === Number.POSITIVE_INFINITY ? false : undefined;

/** A single component is found in any mode, and is the only schedule. */
const isProvenEmpty = (problem: PlanProblem, mode: PlanMode, { schedule, bound }: FastResult): boolean =>
  schedule === null ? bound === Number.POSITIVE_INFINITY : modeAmong(problem, schedule) !== mode;

/** `treadle solve plan`. With `"op": "eval"` it costs a given schedule instead. */
export const planProblem: Problem = {
  schema: z.union([EvalProblem, PlanProblem]),
  methods: planMethods,
  solve(input: unknown, options?: SolveOptions): PlanAnswer | EvalAnswer {
    const isEval = typeof input === "object" && input !== null && "op" in input;
    if (isEval) return solveEval(input, options);
    const answer = solvePlan(input, options);
    if (answer.feasible || !answer.stats.exact) return answer;
    const remedies = wishesToDrop(readProblem(PlanProblem, input), options);
    return { ...answer, explanation: [...answer.explanation, ...remedies] };
  },
};
