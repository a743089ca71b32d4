import { z } from "zod";
import { Interference, interferenceFactor } from "../interference.ts";

const atLeastZero = z.number().nonnegative();

/** One turn: tokens to generate, then a tool. */
const Step = z.strictObject({
  tokens: z.number().positive(),
  /** seconds of the tool that this step calls */
  tool: atLeastZero.default(0),
  /** tokens that the tool's answer adds to the context */
  observe: atLeastZero.default(0),
  /** tokens still to come when this step is submitted, its own included, as they are predicted then */
  pred: atLeastZero,
  /** seconds of tools still to come then, as they are predicted */
  predTool: atLeastZero.default(0),
});

const RolloutTrajectory = z.strictObject({
  /** which prompt it is a sample of */
  prompt: z.int().nonnegative().optional(),
  /** tokens of the prompt */
  context: atLeastZero.default(0),
  steps: z.array(Step).min(1, "expected at least one step"),
});

export const Scheduler = z.enum(["rr", "fcfs", "sjf", "las", "pps", "time"]);
export type Scheduler = z.infer<typeof Scheduler>;

/** Of two numbers that grow and shrink together: what is left, or what it will have been in the end. */
const LeftOrTotal = z.enum(["remaining", "total"]);
export type LeftOrTotal = z.infer<typeof LeftOrTotal>;

const keysOf = {
  cache: ["by"],
  "least-load": [],
  hybrid: ["threshold", "by"],
  dp: ["migrate", "rankBy", "robust"],
} as const satisfies Record<string, readonly string[]>;

const Placement = z
  .strictObject({
    type: z.enum(Object.keys(keysOf) as (keyof typeof keysOf)[]),
    /** of `cache` and `hybrid`: what is taken modulo the workers */
    by: z.enum(["index", "prompt"]).optional(),
    /** of `hybrid`: the largest over the least load above which the least loaded worker takes a step */
    threshold: atLeastZero.optional(),
    /** of `dp`: trajectories change workers as their predictions change, while their tools work */
    migrate: z.boolean().optional(),
    /** of `dp` with `migrate` */
    rankBy: LeftOrTotal.optional(),
    /** of `dp`: s of the noise-aware F′ */
    robust: atLeastZero.optional(),
  })
  .superRefine((placement, context) => {
    const known: readonly string[] = keysOf[placement.type];
    for (const [key, value] of Object.entries(placement)) {
      if (key === "type" || value === undefined || known.includes(key)) continue;
      const takers = Object.entries(keysOf).filter(([, keys]) => (keys as readonly string[]).includes(key));
      const message = `only ${takers.map(([type]) => `'${type}'`).join(" and ")} takes it, not '${placement.type}'`;
      context.addIssue({ code: "custom", path: [key], message });
    }
    if (placement.type === "hybrid" && placement.threshold === undefined) {
      context.addIssue({ code: "custom", path: ["threshold"], message: "expected a number, as 'hybrid' needs one" });
    }
  });
export type Placement = z.infer<typeof Placement>;

/** One rollout step of multi-turn trajectories (Heddle §4 and §5), with its predictions as data. */
export const RolloutProblem = z
  .strictObject({
    trajectories: z.array(RolloutTrajectory),
    workers: z
      .array(
        z.strictObject({
          /** for the reader; nothing depends on it */
          degree: z.unknown().optional(),
          /** seconds that a token takes alone */
          tokenTime: z.number().positive(),
        }),
      )
      .min(1, "expected at least one worker"),
    F: Interference,
    /** requests that a worker generates at once; others queue */
    maxBatch: z.int().positive(),
    scheduler: Scheduler,
    /** of `pps` */
    priority: LeftOrTotal.default("remaining"),
    placement: Placement,
    /** what computing a token of the context anew costs, in tokens generated */
    prefillRatio: atLeastZero.default(0),
    /** seconds that moving a trajectory takes */
    migration: z
      .strictObject({ base: atLeastZero.default(0), perToken: atLeastZero.default(0) })
      .default({ base: 0, perToken: 0 }),
  })
  .superRefine(({ F, maxBatch, placement, trajectories }, context) => {
    const slowest = interferenceFactor(F)(maxBatch);
    if (!(slowest > 0 && slowest < Number.POSITIVE_INFINITY)) {
      const message = `expected a positive, finite factor up to maxBatch, and not F(${maxBatch}) = ${slowest}`;
      context.addIssue({ code: "custom", path: ["F"], message });
    }
    const unnamed = trajectories.findIndex(({ prompt }) => prompt === undefined);
    if (placement.by === "prompt" && unnamed >= 0) {
      const message = "expected the prompt's number, as placement.by is 'prompt'";
      context.addIssue({ code: "custom", path: ["trajectories", unnamed, "prompt"], message });
    }
  });
export type RolloutProblem = z.infer<typeof RolloutProblem>;
