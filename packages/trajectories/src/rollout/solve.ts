import { type Problem, readProblem, type SolveOptions, unknownMethod } from "@treadle/contracts";
import { type EventOptions, runEvents } from "./events.ts";
import { runNaive } from "./naive.ts";
import { answerOf, type RolloutAnswer } from "./outcome.ts";
import { RolloutProblem } from "./problem.ts";

/** The first is the default. */
export const rolloutMethods = ["events", "naive"] as const;

/** Throws `problem.invalid`. Both methods answer the same; `naive` scans everything at every event. */
export function solveRollout(input: unknown, options: SolveOptions = {}): RolloutAnswer {
  const { method = rolloutMethods[0], nowMs } = options;
  if (method !== "events" && method !== "naive") throw unknownMethod(method, rolloutMethods);
  const problem = readProblem(RolloutProblem, input);
  const startedMs = nowMs?.() ?? 0;
  const outcome = method === "events" ? runEvents(problem) : runNaive(problem);
  return answerOf(problem, outcome, { milliseconds: (nowMs?.() ?? 0) - startedMs, method });
}

/** The same with what a problem cannot say: a forecast that learns while it runs, and another rule of migration. */
export function simulateRollout(problem: RolloutProblem, options: EventOptions): RolloutAnswer {
  return answerOf(problem, runEvents(problem, options), { milliseconds: 0, method: "events" });
}

/** `treadle solve rollout`. */
export const rolloutProblem: Problem = { schema: RolloutProblem, methods: rolloutMethods, solve: solveRollout };
