import { TreadleError } from "@treadle/contracts";
import type { RolloutProblem } from "./problem.ts";

/** What an engine on virtual time leaves, one entry a trajectory. */
export type Outcome = {
  readonly finish: Float64Array;
  readonly queueDelay: Float64Array;
  readonly preemptions: number;
  readonly migrations: number;
  readonly exposedMigration: number;
  readonly cacheMisses: number;
  readonly groupSizes: readonly number[] | null;
  /** steps that were submitted, and steps that ended */
  readonly events: number;
};

/** Numbers are null where there is no trajectory that they could be of. */
export type RolloutAnswer = {
  readonly makespan: number;
  readonly tokens: number;
  /** tokens a second */
  readonly throughput: number | null;
  /** the trajectory of most tokens */
  readonly longest: number | null;
  readonly longestFinish: number | null;
  readonly longestQueueDelay: number | null;
  readonly meanQueueDelay: number | null;
  readonly medianFinish: number | null;
  readonly preemptions: number;
  readonly migrations: number;
  /** seconds by which migrations outlasted the tools that they ran beside */
  readonly exposedMigration: number;
  readonly cacheMisses: number;
  readonly finish: readonly number[];
  readonly groupSizes: readonly number[] | null;
  readonly stats: { readonly milliseconds: number; readonly method: string; readonly events: number };
};

export function noFinitePlacement(): TreadleError {
  return new TreadleError(
    "problem.invalid",
    "placement.robust: no placement has a finite makespan; expected a smaller number",
  );
}

export function answerOf(
  { trajectories }: RolloutProblem,
  outcome: Outcome,
  stats: { readonly milliseconds: number; readonly method: string },
): RolloutAnswer {
  const { finish, queueDelay, events, ...counts } = outcome;
  const n = trajectories.length;
  const lengths = trajectories.map(({ steps }) => steps.reduce((sum, { tokens }) => sum + tokens, 0));
  const tokens = lengths.reduce((sum, length) => sum + length, 0);
  const makespan = finish.reduce((latest, at) => Math.max(latest, at), 0);
  if (!(makespan < Number.POSITIVE_INFINITY)) {
    throw new TreadleError("problem.invalid", "input: no number holds its makespan; expected shorter times");
  }
  const longest = lengths.reduce((best, length, i) => (length > lengths[best]! ? i : best), 0);
  return {
    makespan,
    tokens,
    throughput: n === 0 ? null : tokens / makespan,
    longest: n === 0 ? null : longest,
    longestFinish: finish[longest] ?? null,
    longestQueueDelay: queueDelay[longest] ?? null,
    meanQueueDelay: n === 0 ? null : queueDelay.reduce((sum, delay) => sum + delay, 0) / n,
    medianFinish: Float64Array.from(finish).sort()[Math.floor((n - 1) / 2)] ?? null,
    ...counts,
    finish: Array.from(finish),
    stats: { ...stats, events },
  };
}
