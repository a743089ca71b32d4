import { z } from "zod";
import { parseConfig, parseName } from "../config.ts";

const nonNegative = z.number().nonnegative();
const clip = { clipLow: z.number().nonnegative().max(1), clipHigh: nonNegative };

/**
 * KL(policy || reference) as a term of the loss, estimated from the token that was sampled with d = log π(token) −
 * log π_ref(token) (Schulman, "Approximating KL Divergence", 2020): `k3` is exp(−d) − 1 + d (GRPO), `k2` is d² / 2, whose
 * gradient is that of the KL on average (REINFORCE++ with a baseline).
 */
const klInLoss = z.strictObject({
  /** where the divergence from the reference counts: nowhere, in the loss, or in the reward */
  placement: z.literal("loss"),
  /** times the divergence */
  coefficient: z.number().positive(),
  /** of the divergence, from the tokens that were sampled (Schulman, 2020) */
  estimator: z.enum(["k2", "k3"]).default("k3"),
});

/** KL(policy || reference) taken off the reward, token by token: `k1` is d, unbiased; `k3` is never negative. */
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
  z.strictObject({
    /** over the tokens of each sequence and then over sequences, over all tokens, or the sum over a constant */
    type: z.literal("sequence-mean"),
  }),
  z.strictObject({ type: z.literal("token-mean") }),
  z.strictObject({
    type: z.literal("constant"),
    /** by which each sum over tokens is divided */
    tokens: z.number().positive(),
  }),
]);

const entropyCoefficient = nonNegative.default(0);

const common = {
  /** PPO's bound for negative advantages, as a multiple of the advantage */
  dualClip: z.number().gt(1).optional(),
  /** times the entropy of the policy, which is taken off the loss */
  entropyCoefficient,
};

const groupDeviation = {
  /** false leaves advantages in units of reward, as Dr. GRPO does */
  divideByStd: z.boolean().default(true),
  /** divides squared distances by n, or by n − 1 as TRL and verl do */
  deviation: z.enum(["population", "sample"]).default("population"),
};

/** over all tokens of the step, or over those of a group and then over groups, as in the papers of DAPO and CISPO */
const tokenMean = z.enum(["step", "group"]).default("step");

const grpo = z.strictObject({
  /** by which losses and advantages are made of rewards */
  name: z.literal("grpo"),
  /** how far below 1 the ratio of a token's probability to that when it was sampled goes before moving further stops paying */
  clipLow: clip.clipLow.default(0.2),
  /** the same above 1 */
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  ...groupDeviation,
  /** how the terms of tokens become one loss */
  normalisation: normalisation.default({ type: "sequence-mean" }),
  /** the divergence from the reference policy, and where it counts */
  kl: lossKl.default({ placement: "none" }),
  /**
   * groups of equal rewards, whose advantages are all 0, would only dilute the step; false is the paper's own behaviour.
   * With a KL or an entropy in the loss they stay for those terms.
   */
  dropEqualRewards: z.boolean().default(true),
});

const drGrpo = z.strictObject({
  name: z.literal("dr-grpo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  /**
   * a sequence's sum over tokens is divided by this, whatever its length: in the paper the generation budget. All terms are,
   * so an optimiser that does not depend on the gradient's scale only sees it through `maxGradNorm`.
   */
  maxTokens: z.int().positive().default(1),
  kl: lossKl.default({ placement: "none" }),
  dropEqualRewards: z.boolean().default(false),
});

/** DAPO's soft overlong punishment; absent means none */
const overlong = z
  .strictObject({
    /** longest completion in tokens: L_max */
    maxTokens: z.int().positive(),
    /** length over which the punishment grows: L_cache */
    bufferTokens: z.int().positive(),
    /** taken off the reward at `maxTokens` */
    penalty: nonNegative.default(1),
  })
  .refine((value) => value.bufferTokens <= value.maxTokens, { error: "bufferTokens <= maxTokens" })
  .optional();

const cispo = z.strictObject({
  name: z.literal("cispo"),
  /** 1 is no lower bound, as in the paper */
  clipLow: clip.clipLow.default(1),
  clipHigh: clip.clipHigh.default(4),
  entropyCoefficient,
  ...groupDeviation,
  tokenMean,
  kl: lossKl.default({ placement: "none" }),
  dropEqualRewards: z.boolean().default(true),
  overlong,
});

const dapo = z.strictObject({
  name: z.literal("dapo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.28),
  ...common,
  deviation: groupDeviation.deviation,
  tokenMean,
  kl: lossKl.default({ placement: "none" }),
  overlong,
  /** overlong filtering: truncated episodes count in their group's statistics and are not trained on */
  maskTruncated: z.boolean().default(false),
});

const gspo = z.strictObject({
  name: z.literal("gspo"),
  clipLow: clip.clipLow.default(3e-4),
  clipHigh: clip.clipHigh.default(4e-4),
  ...common,
  ...groupDeviation,
  kl: lossKl.default({ placement: "none" }),
  dropEqualRewards: z.boolean().default(true),
});

const rloo = z.strictObject({
  name: z.literal("rloo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  /** what the ratio and the clip are of: the paper's whole sequence, or each token as in PPO */
  action: z.enum(["sequence", "token"]).default("sequence"),
  kl: anyKl.default({ placement: "none" }),
  dropEqualRewards: z.boolean().default(true),
});

const ppo = z.strictObject({
  name: z.literal("ppo"),
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  /** of later rewards, a token */
  discount: z.number().min(0).max(1).default(1),
  /** of generalised advantage estimation */
  lambda: z.number().min(0).max(1).default(0.95),
  /** of the critic's error in the loss */
  valueCoefficient: nonNegative.default(0.5),
  /** how far a value may move from the collected one before moving further stops paying, in units of reward */
  valueClip: z.number().positive().default(0.2),
  /** mean 0 and standard deviation 1 over all policy tokens of the step */
  normaliseAdvantages: z.boolean().default(true),
  normalisation: normalisation.default({ type: "token-mean" }),
  kl: anyKl.default({ placement: "none" }),
  /**
   * an answer cut at its limit: `terminal`, its reward has judged it as it stands; or `bootstrap`, it would have gone on, worth
   * what the critic said before its last token, the nearest that is scored
   */
  truncation: z.enum(["terminal", "bootstrap"]).default("terminal"),
});

const reinforce = {
  clipLow: clip.clipLow.default(0.2),
  clipHigh: clip.clipHigh.default(0.2),
  ...common,
  normalisation: normalisation.default({ type: "token-mean" }),
};

const reinforcePlusPlus = z.strictObject({
  name: z.literal("reinforce++"),
  ...reinforce,
  kl: anyKl.default({ placement: "reward", coefficient: 0.01, estimator: "k1" }),
});

const reinforcePlusPlusBaseline = z.strictObject({
  name: z.literal("reinforce++-baseline"),
  ...reinforce,
  kl: anyKl.default({ placement: "loss", coefficient: 0.01, estimator: "k2" }),
});

const schemas = {
  grpo,
  "dr-grpo": drGrpo,
  dapo,
  gspo,
  cispo,
  rloo,
  "reinforce++": reinforcePlusPlus,
  "reinforce++-baseline": reinforcePlusPlusBaseline,
  ppo,
};

export const AlgorithmConfig = z.discriminatedUnion("name", [
  grpo,
  drGrpo,
  dapo,
  gspo,
  cispo,
  rloo,
  reinforcePlusPlus,
  reinforcePlusPlusBaseline,
  ppo,
]);
export type AlgorithmConfig = z.infer<typeof AlgorithmConfig>;
export type AlgorithmName = AlgorithmConfig["name"];
export type AlgorithmConfigOf<Name extends AlgorithmName> = Extract<AlgorithmConfig, { name: Name }>;

/** Fewest episodes of a prompt that there is a baseline with: where it is the group's, one would be compared with itself. */
export function minGroupSizeOf(name: AlgorithmName): number {
  return name === "ppo" || name === "reinforce++" ? 1 : 2;
}

/** Refines a configuration with an algorithm and a group size: refuses a group too small to be compared within. */
export function checkGroupSize(
  { algorithm, groupSize }: { readonly algorithm: AlgorithmConfig; readonly groupSize: number },
  context: z.core.$RefinementCtx,
): void {
  const least = minGroupSizeOf(algorithm.name);
  if (groupSize >= least) return;
  const message =
    `'${algorithm.name}' compares the answers to one prompt: allowed is a number >= ${least}; ` +
    "raise it, or take 'reinforce++' or 'ppo', which compare none";
  context.addIssue({ code: "custom", path: ["groupSize"], input: groupSize, message });
}

export const algorithmNames = Object.keys(schemas) as AlgorithmName[];

/** Validates a configuration and fills in defaults; throws `config.invalid` with every wrong key under `path`. */
export function parseAlgorithmConfig(value: unknown, path = "algorithm"): AlgorithmConfig {
  return parseConfig<AlgorithmConfig>(schemas[parseName(algorithmNames, value, path)], value, path);
}
