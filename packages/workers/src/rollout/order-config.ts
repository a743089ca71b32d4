import { OnNewWeights } from "@treadle/engines";
import {
  type EpisodeLimits,
  Interference,
  liveMigrations,
  livePlacements,
  modelNames,
  type Oversampling,
  type PredictionScores,
  Scheduler,
} from "@treadle/trajectories";
import { z } from "zod";
import type { EngineConfig } from "../engine.ts";

const Oversampled = z.number().min(1).max(4);

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
  /**
   * Where the episodes of a rank's prompts begin: `own`, the default: there; `least-load`: at whichever rank of the group has a place first,
   * as far as it knows; `predicted`: in groups by predicted length, over the episodes of all ranks: the longest go to
   * the fastest ranks, with the least company. Ranks that share episodes, by this or by `migrate`, keep their devices until all are done
   */
  placement: z.enum(livePlacements).optional(),
  /**
   * When an episode whose tool works goes on at another rank, which computes its tokens' keys and values again: `never`; `scaled`: as groups
   * shrink in proportion (Heddle §5.3; with placement `predicted` alone); `anew`: as the unfinished would be placed now; `pays`: only where that
   * ends it sooner by a tenth. Default: `pays` where placement is `predicted`, as what was predicted wrongly would stay in its group; else `never`
   */
  migrate: z.enum(liveMigrations).optional(),
  /**
   * devices that each rank spans, in order, such as `[4, 2, 1, 1]`: placement `predicted` and `migrate` give the longest episodes to
   * the fastest ranks (Heddle §6). `treadle simulate rollout` proposes a list; with `auto` the run does, between steps, and changes
   * where the steps before, simulated with their predictions, say that it pays: on the emulated engine, with placement `predicted`.
   * Default: ranks of equal size, as many as the plan says. The embedded engine and PyTorch generate on one device a rank
   */
  degrees: z.union([z.literal("auto"), z.array(z.int().positive()).min(1).max(1024)]).optional(),
  /** how much slower an episode is beside others of its rank, for placement and migration, until enough of that was measured; default: by 4 % for each of the others */
  interference: Interference.optional(),
  /**
   * What becomes of a step's longest episodes: `wait`, the default: the step lasts as long as they do; `cut`: more are begun than the step
   * wants, those that end first are taken, and the others end there; `batch`: the same, and prompts that lost are played later, in steps of
   * their own without a race, so that long ones are trained as often as others; `carry`: the same, and they go on in the next step, where they
   * are, with the weights of that step. All but `wait` on the embedded engine, the emulated one, PyTorch and engines of a module, where
   * episodes stay at their rank
   */
  tail: z.enum(["wait", "carry", "cut", "batch"]).optional(),
  /**
   * What becomes of an episode that has begun when its engine gets new weights, as what `tail` `carry` leaves to the next step: `restart`: the
   * tokens of its turn are drawn again; `recompute`: they are kept, and their keys and values are computed with the new weights; `keep`: both
   * are kept. Each token keeps the version that chose it. `keep` needs the same rank, and an engine that was not released meanwhile:
   * mode `temporal` releases it. Default: what goes on in a later step is computed as with `recompute`; what runs while weights come begins
   * again from its prompt. `recompute` on the embedded engine, the emulated one and PyTorch with a process of its own; `keep` on the
   * first two; both on engines of a module with `heedsNewWeights`
   */
  onNewWeights: OnNewWeights.optional(),
  /** begins more episodes than a step needs, and takes the first that end */
  oversample: z
    .strictObject({
      /** how many samples of a prompt are begun for one that is wanted: cutting favours short ones; default: 1.25 for `cut`, 1 for others */
      samples: Oversampled.optional(),
      /** how many prompts of a step are begun for one that is wanted; with `cut` those that lose are trained in no step; default: 1 for `cut`, 1.25 for `batch` and `carry` */
      prompts: Oversampled.optional(),
    })
    .optional(),
  /**
   * how many other prompts of the dataset may take the place of one whose samples were all rewarded alike, which group-relative algorithms
   * learn nothing from (dynamic sampling of DAPO); what is alike then is put all the same; default: 0
   */
  resample: z.int().min(0).max(16).optional(),
});
export type RolloutOrderConfig = z.infer<typeof RolloutOrderConfig>;

/** How many episodes an engine computes at once, in the order that it is asked for; undefined where it makes its own batches. */
export function placesOf({ model, engine, emulated }: EngineConfig): number | undefined {
  if (emulated) return emulated.slots;
  if (engine?.kind === "sglang" || engine?.kind === "vllm") return engine.maxRunning;
  if (engine?.kind === "module") return engine.places;
  return engine?.kind === "torch" ? undefined : model.slots;
}

/** What ends an episode at the latest. */
export const limitsOf = (
  config: Pick<EngineConfig, "model"> & { readonly maxTokens: number; readonly call?: { readonly maxCalls: number } },
): EpisodeLimits => {
  const { maxTokens, model, call } = config;
  return { maxTokens, contextTokens: model.contextLength, ...(call ? { maxTurns: call.maxCalls + 1 } : {}) };
};

/** Whether a step may leave prompts, which later ones play or none does: `generate` is given a channel for them. */
export const leavesPrompts = (config: RolloutOrderConfig): boolean => {
  const { tail, resample = 0 } = config;
  return tail === "batch" || tail === "carry" || oversamplingOf(config).prompts > 1 || resample > 0;
};

/**
 * How old the oldest token may be, in steps (W2). Where m steps may be unfinished when the next begins (`flow.maxStaleness`), a step is given at the
 * latest m + 1 steps later what one carries on, as it is known by then; and that had been chosen by weights m steps behind.
 */
export const mostStaleness = ({ tail }: RolloutOrderConfig, maxStaleness: number): number =>
  tail === "carry" ? 2 * maxStaleness + 1 : maxStaleness;

/** How many are begun for one that is wanted. */
export const oversamplingOf = ({ tail = "wait", oversample = {} }: RolloutOrderConfig): Oversampling => {
  const { samples, prompts } = usualOversampling[tail];
  return { samples: oversample.samples ?? samples, prompts: oversample.prompts ?? prompts };
};

const usualOversampling = {
  wait: { samples: 1, prompts: 1 },
  carry: { samples: 1, prompts: 1.25 },
  cut: { samples: 1.25, prompts: 1 },
  batch: { samples: 1, prompts: 1.25 },
};

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

/** Of what ranks shared. */
export type SharingMetrics = {
  /** of this rank's episodes, how often one went on at another rank than before */
  readonly episodesMoved?: number;
  /** share of the call in which it had an episode to compute: what it is short of 1, it waited for other ranks */
  readonly rolloutBusy?: number;
};

/** Of a step whose tail was cut, on each rank: what ended early, by cause, and how long was what is trained. And what was drawn again. */
export type TailMetrics = {
  /** groups whose rewards were all alike: that gave their place to another prompt, and that were put so in the end */
  readonly groupsReplaced?: number;
  readonly groupsAlike?: number;
  /** episodes that ended because the first of their prompt had */
  readonly cutWithGroup?: number;
  /** episodes that ended because the step had enough groups */
  readonly cutWithStep?: number;
  /** prompts without a group: of `tail: cut` those that no step trains, of others those that a later one does */
  readonly promptsCut?: number;
  readonly promptsDeferred?: number;
  /** tokens that an earlier step had generated of what goes on in this one */
  readonly carriedTokens?: number;
  /** tokens that were generated and are neither trained nor carried on */
  readonly cutTokens?: number;
  /** tokens of an episode after its prompt, on average: of those that are trained, and of all that were begun */
  readonly trainedLength?: number;
  readonly generatedLength?: number;
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
