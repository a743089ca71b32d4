import type { LeftOrTotal, Scheduler } from "./problem.ts";

/** What a scheduler may know of a step when it is submitted. */
export type SubmittedStep = {
  readonly trajectory: number;
  readonly submittedAt: number;
  /** tokens still to come, this step's included */
  readonly predictedTokens: number;
  readonly generatedTokens: number;
};

/**
 * Where a step stands in its worker's queue: smaller keys first, equal ones by trajectory. A step keeps its key.
 * `pps` is Heddle §4.2's progressive priority: the longest first, by the prediction as of this step.
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
  }
}

/** Whether a step that queues takes the place of an active one which it precedes (Heddle Alg. 1). */
export const preempts = (scheduler: Scheduler): boolean => scheduler === "pps";
