import { z } from "zod";
import { Interference } from "../interference.ts";
import type { LiveMigration } from "../live/group-placement.ts";
import type { RolloutProblem, Scheduler } from "../rollout/problem.ts";
import { simulateRollout } from "../rollout/solve.ts";

const finite = z.number().nonnegative();

/** An episode that has ended, with what was predicted of the rest before each turn. */
export const PlayedEpisode = z.strictObject({
  contextTokens: z.int().nonnegative(),
  turns: z
    .array(
      z.strictObject({
        tokens: z.int().positive(),
        toolSeconds: finite,
        observedTokens: z.int().nonnegative(),
        /** this turn and those after it */
        predictedTokens: finite,
        predictedToolSeconds: finite,
      }),
    )
    .min(1),
});
export type PlayedEpisode = z.infer<typeof PlayedEpisode>;

/** The episodes of a step, or of one rank's part of it. */
export const PlayedStep = z.strictObject({
  /** as measured; absent: it was not seen enough of */
  F: Interference.optional(),
  /** by how much predictions before the first turn err, in the logarithm */
  logSd: finite,
  episodes: z.array(PlayedEpisode),
});
export type PlayedStep = z.infer<typeof PlayedStep>;

/** What ranks said of one step, together. */
export function joinParts(parts: readonly PlayedStep[]): PlayedStep {
  const episodes = parts.flatMap((part) => part.episodes);
  const measured = parts.flatMap(({ F }) => (F?.type === "affine" ? [F.slope] : [])).sort((a, b) => a - b);
  const slope = measured[Math.floor(measured.length / 2)];
  const logSd = parts.reduce((sum, part) => sum + part.logSd * part.episodes.length, 0) / Math.max(1, episodes.length);
  return { logSd, episodes, ...(slope === undefined ? {} : { F: { type: "affine", slope } }) };
}

/** How ranks run what they share. */
export type SharingWay = {
  /** seconds per token by degree */
  readonly tokenTime: Readonly<Record<string, number>>;
  /** episodes that a rank computes at once */
  readonly places: number;
  readonly scheduler: Scheduler;
  readonly migrate: LiveMigration;
  /** what a token that is read costs, in tokens of decoding */
  readonly prefillSteps: number;
};

/** Seconds of a played step on ranks of these degrees, predicted as it was while it ran. */
export function replaySeconds(
  { episodes, logSd }: PlayedStep,
  degrees: readonly number[],
  F: Interference,
  { tokenTime, places, scheduler, migrate, prefillSteps }: SharingWay,
): number {
  const workers = degrees.map((degree) => ({ degree, tokenTime: tokenTime[degree] as number }));
  const slowest = Math.max(...workers.map((worker) => worker.tokenTime));
  const problem: RolloutProblem = {
    trajectories: episodes.map(({ contextTokens, turns }) => ({
      context: contextTokens,
      steps: turns.map((turn) => ({
        tokens: turn.tokens,
        tool: turn.toolSeconds,
        observe: turn.observedTokens,
        pred: turn.predictedTokens,
        predTool: turn.predictedToolSeconds,
      })),
    })),
    workers,
    F,
    maxBatch: places,
    scheduler,
    priority: "remaining",
    // As `livePlacement` has it.
    placement: {
      type: "dp",
      robust: logSd / 2,
      ...(migrate === "never" ? {} : { migrate: true, rankBy: "total" as const }),
    },
    prefillRatio: prefillSteps,
    // What moves is read again where it goes on.
    migration: { base: 0, perToken: prefillSteps * slowest },
  };
  return simulateRollout(problem, {
    estimate: "scheduled",
    migrationRule: migrate === "never" ? undefined : migrate,
  }).makespan;
}
