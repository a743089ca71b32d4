import type { LeftOrTotal, Scheduler } from "./problem.ts";

/** What a scheduler may know of a step when it is submitted. */
export type SubmittedStep = {
  readonly trajectory: number;
  readonly submittedAt: number;
  /** tokens still to come, this step's included */
  readonly predictedTokens: number;
  /** until the trajectory ends, as predicted: of its tokens, this step's included, and of its tools */
  readonly predictedSeconds: number;
  readonly generatedTokens: number;
};

/**
 * Where a step stands in its worker's queue: smaller keys first, equal ones by trajectory. A step keeps its key.
 * `pps` is Heddle §4.2's progressive priority: the longest first, by the prediction as of this step. It counts tokens alone;
 * `time`, which is ours, counts seconds, those of tools included.
 */
export function queueKey(scheduler: Scheduler, priority: LeftOrTotal): (step: SubmittedStep) => number {
  switch (scheduler) {
    case "rr":
      return (step) => step.submittedAt;
    case "fcfs":
      return (step) => step.trajectory;
    case "sjf":
      return (step) => step.predictedTokens;
    case "las":
      return (step) => step.generatedTokens;
    case "pps":
      return priority === "total"
        ? (step) => -(step.predictedTokens + step.generatedTokens)
        : (step) => -step.predictedTokens;
    case "time":
      return (step) => -step.predictedSeconds;
  }
}

/** Whether a step that queues takes the place of an active one which it precedes (Heddle Alg. 1). */
export const preempts = (scheduler: Scheduler): boolean => scheduler === "pps" || scheduler === "time";

/** Whether its keys depend on what is predicted. */
export const predicts = (scheduler: Scheduler): boolean => scheduler === "sjf" || preempts(scheduler);
