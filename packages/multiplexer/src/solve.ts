import { type Problem, readProblem, type SolveOptions, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import { BalanceProblem, balance } from "./balance.ts";
import { lowerBound } from "./bound.ts";
import { Effort } from "./effort.ts";
import { compile, type SubStageGraph } from "./graph.ts";
import { lookahead } from "./lookahead.ts";
import { MergeProblem, merge } from "./merge.ts";
import { MultiplexState } from "./multiplex-state.ts";
import { optimum } from "./optimum.ts";
import { playout } from "./playout.ts";
import { greedy, mux, type Policy, temporal } from "./policies.ts";
import { MultiplexProblem } from "./problem.ts";
import { NamedDecision, type ReplayAnswer, replay } from "./replay.ts";
import { follow } from "./schedule.ts";
import { search } from "./search.ts";
import { SegmentProblem, segment } from "./segment.ts";
import { serial } from "./serial.ts";
import { type Timeline, timelineOf } from "./timeline.ts";

/** The first is the default. */
export const multiplexMethods = [
  "search",
  "serial",
  "temporal",
  "mux",
  "greedy",
  "lookahead",
  "playout",
  "optimum",
] as const;
type Method = (typeof multiplexMethods)[number];

export type MultiplexStats = {
  readonly milliseconds: number;
  readonly method: Method;
  readonly decisions: number;
  /** ends and decisions that were simulated on the way */
  readonly steps: number;
  /** seconds that no schedule is below; null when infeasible */
  readonly bound: number | null;
};

export type MultiplexAnswer = {
  readonly feasible: boolean;
  /** seconds; null when a sub-stage fits nowhere */
  readonly makespan: number | null;
  /** when the last sub-stage of each pipeline ends */
  readonly perPipeline: Readonly<Record<string, number>>;
  /** the time of one pipeline after another, over the makespan */
  readonly throughputRatio: number | null;
  readonly decisions: readonly NamedDecision[];
  readonly substages: readonly { readonly id: string; readonly start: number; readonly end: number }[];
  /** false: a limit or the deadline cut the search off */
  readonly complete: boolean;
  readonly stats: MultiplexStats;
};

/** Throws `problem.invalid`. */
export function solveMultiplex(input: unknown, options: SolveOptions = {}): MultiplexAnswer {
  const method = methodOf(options.method);
  return answerOf(compile(readProblem(MultiplexProblem, input)), method, options);
}

/** Any input of `treadle solve multiplex`: a problem, or an operation by its `op`. */
function solve(input: unknown, options: SolveOptions = {}): unknown {
  if (typeof input !== "object" || input === null || !("op" in input)) return solveMultiplex(input, options);
  methodOf(options.method);
  const { op } = readProblem(z.looseObject({ op: z.enum(operationNames) }), input);
  const startedMs = options.nowMs?.() ?? 0;
  const answer = operations[op](input, options);
  return { ...answer, stats: { milliseconds: (options.nowMs?.() ?? 0) - startedMs } };
}

const operationNames = ["all", "replay", "segment", "merge", "balance"] as const;
const All = z.strictObject({ op: z.literal("all"), input: MultiplexProblem });
const Replay = z.strictObject({ op: z.literal("replay"), input: MultiplexProblem, decisions: z.array(NamedDecision) });

const operations: Readonly<Record<(typeof operationNames)[number], (input: unknown, options: SolveOptions) => object>> =
  {
    all: (input, options) => {
      const graph = compile(readProblem(All, input).input);
      const methods = multiplexMethods.filter((method) => method !== "optimum");
      return Object.fromEntries(methods.map((method) => [method, answerOf(graph, method, options).makespan]));
    },
    replay: (input): ReplayAnswer => {
      const { input: problem, decisions } = readProblem(Replay, input);
      return replay(compile(problem), decisions);
    },
    segment: (input) => ({ segments: segment(readProblem(SegmentProblem, input)) }),
    merge: (input) => merge(readProblem(MergeProblem, input)),
    balance: (input) => balance(readProblem(BalanceProblem, input)),
  };

function methodOf(method: string = multiplexMethods[0]): Method {
  const known = multiplexMethods.find((name) => name === method);
  if (known === undefined) throw unknownMethod(method, multiplexMethods);
  return known;
}

function answerOf(graph: SubStageGraph, method: Method, { nowMs, deadlineMs }: SolveOptions): MultiplexAnswer {
  const { substages } = graph.problem;
  const isFeasible = graph.fittingOption.every((option) => option >= 0);
  if (!isFeasible) {
    const stats = { milliseconds: 0, method, decisions: 0, steps: 0, bound: null };
    const nothing = { perPipeline: {}, decisions: [], substages: [] };
    return { feasible: false, makespan: null, throughputRatio: null, ...nothing, complete: true, stats };
  }
  const effort = new Effort({ deadlineMs, nowMs });
  const startedMs = nowMs?.() ?? 0;
  const { complete, timeline } = schedule(graph, method, effort);
  const milliseconds = (nowMs?.() ?? 0) - startedMs;
  const { makespan, decisions, spans } = timeline;
  const ends = graph.pipelines.map((name, p): [string, number] => [
    name,
    Math.max(...spans.filter((_, i) => graph.pipeline[i] === p).map(({ end }) => end)),
  ]);
  const serialSeconds = method === "serial" ? makespan : serial(graph).makespan;
  return {
    feasible: true,
    makespan,
    perPipeline: Object.fromEntries(ends),
    throughputRatio: makespan === 0 ? 1 : serialSeconds / makespan,
    decisions,
    substages: substages.map(({ id }, i) => ({ id, ...spans[i]! })),
    complete,
    stats: {
      milliseconds,
      method,
      decisions: decisions.length,
      steps: effort.steps,
      bound: method === "serial" ? null : lowerBound(graph)(MultiplexState.initial(graph)),
    },
  };
}

function schedule(
  graph: SubStageGraph,
  method: Method,
  effort: Effort,
): { readonly timeline: Timeline; readonly complete: boolean } {
  const { window, limit } = graph.problem;
  const following = (policy: Policy) => ({
    timeline: timelineOf(graph, follow(MultiplexState.initial(graph), policy)),
    complete: !effort.isSpent,
  });
  switch (method) {
    case "serial":
      return { timeline: serial(graph), complete: true };
    case "temporal":
      return following(temporal);
    case "mux":
      return following(mux);
    case "greedy":
      return following(greedy);
    case "lookahead":
      return following(lookahead(graph, window, effort));
    case "playout":
      return following(playout(graph, effort));
    case "search": {
      const found = search(graph, window, effort);
      return { timeline: timelineOf(graph, found), complete: found.complete };
    }
    case "optimum": {
      const known = search(graph, window, effort);
      const found = optimum(graph, known, limit, effort);
      return { timeline: timelineOf(graph, found.schedule), complete: found.complete };
    }
  }
}

/** `treadle solve multiplex`. */
export const multiplexProblem: Problem = { schema: MultiplexProblem, methods: multiplexMethods, solve };
