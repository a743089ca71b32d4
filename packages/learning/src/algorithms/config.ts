import { z } from "zod";
import { parseConfig, parseName } from "../config.ts";

const nonNegative = z.number().nonnegative();
const clip = { clipLow: z.number().nonnegative().max(1), clipHigh: nonNegative };

/** KL(policy || reference) as the k3 term of the loss; see `referenceLoss`. */
const klInLoss = z.strictObject({ placement: z.literal("loss"), coefficient: z.number().positive() });

/**
 * KL(policy || reference) taken off the reward, token by token, estimated from the token that was sampled, with
 * d = log π(token) − log π_ref(token): `k1` is d, unbiased; `k3` is exp(−d) − 1 + d, never negative, less variance
 * (Schulman, "Approximating KL Divergence", 2020).
 */
const klInReward = z.strictObject({
  placement: z.literal("reward"),
  coefficient: z.number().positive(),
  estimator: z.enum(["k1", "k3"]).default("k1"),
});

const noKl = z.strictObject({ placement: z.literal("none") });

const lossKl = z.discriminatedUnion("placement", [noKl, klInLoss]);
const anyKl = z.discriminatedUnion("placement", [noKl, klInLoss, klInReward]);
export type KlConfig = z.infer<typeof anyKl>;

const normalisation = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("sequence-mean") }),
  z.strictObject({ type: z.literal("token-mean") }),
  z.strictObject({ type: z.literal("constant"), tokens: z.number().positive() }),
]);

const common = {
  /** PPO's bound for negative advantages, as a multiple of the advantage */
  dualClip: z.number().gt(1).optional(),
  entropyCoefficient: nonNegative.default(0),
};

const grpo = z.strictObject({
  name: z.literal("grpo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  /** false leaves advantages in units of reward, as Dr. GRPO does */
  divideByStd: z.boolean().default(true),
  normalisation: normalisation.default({ type: "sequence-mean" }),
  kl: lossKl.default({ placement: "none" }),
  /** groups that teach nothing would only dilute the step; false is the paper's own behaviour */
  dropEqualRewards: z.boolean().default(true),
});

const dapo = z.strictObject({
  name: z.literal("dapo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.28),
  ...common,
  kl: lossKl.default({ placement: "none" }),
  /** soft overlong punishment; absent means none */
  overlong: z
    .strictObject({
      /** longest completion in tokens: L_max */
      maxTokens: z.int().positive(),
      /** length over which the punishment grows: L_cache */
      bufferTokens: z.int().positive(),
      penalty: nonNegative.default(1),
    })
    .refine((value) => value.bufferTokens <= value.maxTokens, { error: "bufferTokens <= maxTokens" })
    .optional(),
  /** overlong filtering: truncated episodes count in their group's statistics and are not trained on */
  maskTruncated: z.boolean().default(false),
});

const gspo = z.strictObject({
  name: z.literal("gspo"),
  clipLow: clip.clipLow.default(3e-4),
  clipHigh: clip.clipHigh.default(4e-4),
  ...common,
  divideByStd: z.boolean().default(true),
  kl: lossKl.default({ placement: "none" }),
  dropEqualRewards: z.boolean().default(true),
});

const rloo = z.strictObject({
  name: z.literal("rloo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  normalisation: normalisation.default({ type: "constant", tokens: 1 }),
  kl: anyKl.default({ placement: "none" }),
  dropEqualRewards: z.boolean().default(true),
});

const ppo = z.strictObject({
  name: z.literal("ppo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  discount: z.number().min(0).max(1).default(1),
  lambda: z.number().min(0).max(1).default(0.95),
  /** of the critic's error in the loss */
  valueCoefficient: nonNegative.default(0.5),
  /** how far a value may move from the collected one before moving further stops paying, in units of reward */
  valueClip: z.number().positive().default(0.2),
  /** mean 0 and standard deviation 1 over all policy tokens of the step */
  normaliseAdvantages: z.boolean().default(true),
  normalisation: normalisation.default({ type: "token-mean" }),
  kl: anyKl.default({ placement: "none" }),
});

const reinforcePlusPlus = z.strictObject({
  name: z.literal("reinforce++"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  /** `group-mean` subtracts the mean reward of the prompt first (the paper's variant for several samples a prompt) */
  baseline: z.enum(["none", "group-mean"]).default("none"),
  normalisation: normalisation.default({ type: "token-mean" }),
  kl: anyKl.default({ placement: "reward", coefficient: 0.01, estimator: "k1" }),
});

const schemas = { grpo, ppo, dapo, "reinforce++": reinforcePlusPlus, rloo, gspo };

export const AlgorithmConfig = z.discriminatedUnion("name", [grpo, ppo, dapo, reinforcePlusPlus, rloo, gspo]);
export type AlgorithmConfig = z.infer<typeof AlgorithmConfig>;
export type AlgorithmName = AlgorithmConfig["name"];
export type AlgorithmConfigOf<Name extends AlgorithmName> = Extract<AlgorithmConfig, { name: Name }>;

export const algorithmNames = Object.keys(schemas) as AlgorithmName[];

/** Validates a configuration and fills in defaults; throws `config.invalid` with every wrong key under `path`. */
export function parseAlgorithmConfig(value: unknown, path = "algorithm"): AlgorithmConfig {
  return parseConfig<AlgorithmConfig>(schemas[parseName(algorithmNames, value, path)], value, path);
}
