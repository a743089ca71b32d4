import { modelNames, type PredictionScores, Scheduler } from "@treadle/trajectories";
import { z } from "zod";
import type { EngineConfig } from "../engine.ts";

/** Which episodes of a rank go first where they outnumber the places of its engine (`model.slots`, or a server's `maxRunning`). No token depends on it. */
export const RolloutOrderConfig = z.strictObject({
  /**
   * `pps`: the longest first, by what is predicted after each turn; `time`: the same in seconds, tools included; `sjf`: the
   * shortest first; `las`: the one that has least; `rr`: the one that waits longest; `fcfs`: as they come, and nobody
   * leaves a place. Default: `pps`; `fcfs` on engines that make their own batches, and where `maxTokens` is below 16,
   * which end so soon that predictions cost more than their order gains
   */
  scheduler: Scheduler.optional(),
  /** whose predictions order episodes; default: `learned`, which is prompt history wherever learning does no better */
  predictor: z.enum(modelNames).optional(),
});
export type RolloutOrderConfig = z.infer<typeof RolloutOrderConfig>;

/** How many episodes an engine computes at once, in the order that it is asked for; undefined where it makes its own batches. */
export function placesOf({ model, engine, emulated }: EngineConfig): number | undefined {
  if (emulated) return emulated.slots;
  if (engine?.kind === "sglang" || engine?.kind === "vllm") return engine.maxRunning;
  return engine?.kind === "torch" ? undefined : model.slots;
}

const fewestTokens = 16;

export const schedulerOf = (config: EngineConfig & RolloutOrderConfig & { readonly maxTokens: number }): Scheduler =>
  config.scheduler ?? (placesOf(config) === undefined || config.maxTokens < fewestTokens ? "fcfs" : "pps");

/** How well a step's lengths were foretold, over all turns: of what ordered the episodes, and of prompt history alone. */
export type PredictionMetrics = {
  /** between logarithms of predicted and actual tokens left */
  readonly predictionPearson?: number;
  /** of the tenth that was longest, the share among the tenth that was predicted to be */
  readonly predictionRecall?: number;
  readonly predictionLogSd?: number;
  /** share of outcomes in the 80 % interval */
  readonly predictionCoverage?: number;
  readonly historyLogSd?: number;
};

export function predictionMetrics(scores: PredictionScores): PredictionMetrics {
  const [served, history] = [scores.overall("tokens", "served"), scores.overall("tokens", "prompt-history")];
  if (!served || !history) return {};
  return {
    ...(served.pearson === null ? {} : { predictionPearson: served.pearson }),
    predictionRecall: served.recallOfLongest,
    predictionLogSd: served.logSd,
    predictionCoverage: served.coverage,
    historyLogSd: history.logSd,
  };
}
