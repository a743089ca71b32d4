import { Interference, interferenceFactor, workloadNames } from "@treadle/trajectories";
import { z } from "zod";

const list = <Item extends z.ZodType>(item: Item) => z.array(item).min(1);

/** Where predictions come from: the shipped predictor while the step runs, the truth, or the truth off by a log-sd. */
const Predictions = z.union([z.enum(["learned", "oracle"]), z.strictObject({ logSd: z.number().min(0).max(3) })]);
export type Predictions = z.infer<typeof Predictions>;

/** Rollouts that are compared. Each list is an axis: every combination is a setting. */
export const RolloutScenario = z
  .strictObject({
    name: z.string().min(1).default("scenario"),
    seed: z.int().nonnegative().default(0),
    workloads: list(z.enum(workloadNames)).default(workloadNames),
    gpus: z.int().positive().max(1024).default(16),
    /** episodes of a step, in groups of `samples` of one prompt */
    episodes: list(z.int().positive()).default([480, 1600]),
    samples: z.int().positive().default(16),
    /** prompts that steps are drawn from, as a multiple of those of one step */
    promptsPerStepPrompts: z.number().min(1).default(2),
    F: list(Interference).default([
      { type: "affine", slope: 0.012 },
      { type: "affine", slope: 0.04 },
    ]),
    predictions: list(Predictions).default(["learned", { logSd: 0.3 }, { logSd: 0.8 }]),
    /** steps that the predictor learns from before the one that is compared */
    learnSteps: z.int().min(2).default(4),
    /** seconds per token by degree of model parallelism */
    tokenTime: z
      .record(z.string().regex(/^[1-9]\d*$/), z.number().positive())
      .default({ 1: 0.018, 2: 0.0115, 4: 0.008, 8: 0.0063 }),
    maxBatch: z.int().positive().default(100),
    prefillRatio: z.number().nonnegative().default(0.01),
    migration: z
      .strictObject({ base: z.number().nonnegative(), perToken: z.number().nonnegative() })
      .default({ base: 0.05, perToken: 0.00002 }),
  })
  .superRefine(({ F, maxBatch, gpus, tokenTime }, context) => {
    for (const [i, spec] of F.entries()) {
      const factor = interferenceFactor(spec)(maxBatch);
      if (factor > 0 && factor < Number.POSITIVE_INFINITY) continue;
      context.addIssue({ code: "custom", path: ["F", i], message: "expected a factor that is finite up to maxBatch" });
    }
    if (!Object.keys(tokenTime).some((degree) => Number(degree) <= gpus)) {
      context.addIssue({ code: "custom", path: ["tokenTime"], message: `no degree fits into ${gpus} GPUs` });
    }
  });
export type RolloutScenario = z.infer<typeof RolloutScenario>;

/** By name, for `--scenario`. */
export const rolloutScenarios = {
  /** 18 settings on 16 GPUs, in minutes */
  small: { name: "small", episodes: [480] },
  /** 36 settings, with three times as many episodes as well */
  grid: { name: "grid" },
  /** Heddle §7's size: 64 GPUs and 6400 episodes of 16 samples */
  paper: { name: "paper", gpus: 64, episodes: [6400], predictions: ["learned"], learnSteps: 3 },
  /** one setting, in seconds */
  one: {
    name: "one",
    workloads: ["coding"],
    episodes: [480],
    F: [{ type: "affine", slope: 0.04 }],
    predictions: ["learned"],
  },
} as const satisfies Record<string, z.input<typeof RolloutScenario>>;
