import { z } from "zod";
import { VersionRun, type VersionRuns } from "./version-runs.ts";

// Arrays may lie in shared memory, which the narrower type of `instanceof` leaves out.
const int32: z.ZodType<Int32Array> = z.instanceof(Int32Array);
const float32: z.ZodType<Float32Array> = z.instanceof(Float32Array);

/** One message of a chat. `content` may be parts, as templates of models for images have them, and more keys are the template's. */
export const Message = z.looseObject({ role: z.string(), content: z.unknown() });
export type Message = z.infer<typeof Message>;

export const FinishReason = z.enum(["stop", "length", "abort"]);
export type FinishReason = z.infer<typeof FinishReason>;

/** What an episode had when the step in which it began ended before it. */
export const BegunEpisode = z.object({
  /** after the prompt */
  tokens: int32,
  logprobs: float32,
  /** that chose them, the last of them where there are several */
  policyVersion: z.int(),
  /** where several versions chose them */
  versions: z.array(VersionRun).readonly().optional(),
  /** it had ended, and its group had not */
  finishReason: FinishReason.optional(),
  /** of an episode that has called a tool */
  tool: z
    .object({
      /** as the tool knows it; absent where it has ended there */
      trajectory: z.string().optional(),
      /** where its answers stand in `tokens`: from and to */
      answers: z.array(z.tuple([z.int().nonnegative(), z.int().positive()]).readonly()).min(1),
      /** of the call behind each answer, which predictions of the rest go by; absent where nobody kept it */
      outcomes: z
        .array(z.object({ toolSeconds: z.number().nonnegative(), hasToolFailed: z.boolean() }).readonly())
        .readonly()
        .optional(),
    })
    .optional(),
});
export type BegunEpisode = z.infer<typeof BegunEpisode>;

/** Why a prompt is trained in no step: its step had enough groups before, or its samples were all rewarded alike. */
export const CutCause = z.enum(["late", "alike"]);
export type CutCause = z.infer<typeof CutCause>;

/** One prompt as token ids. `answer` is what a verifiable reward compares with. */
export const Prompt = z.object({
  id: z.string(),
  tokens: int32,
  answer: z.string().optional(),
  /** the text that the tokens stand for */
  text: z.string().optional(),
  /** the chat that a template made the text of */
  messages: z.array(Message).optional(),
  /** whatever else a data set says of it, as JSON */
  metadata: z.record(z.string(), z.unknown()).optional(),
  /** it lost the race of an earlier step, and is played to the end */
  isLate: z.boolean().optional(),
  /** of its samples, where they go on instead of beginning again */
  begun: z.array(BegunEpisode).optional(),
  /** it is begun where another was rewarded alike, and else waits for a later step; from where in its dataset it can be drawn again, if it can */
  spare: z
    .object({
      round: z.int().positive(),
      index: z.int().nonnegative(),
      /** its dataset goes on from a position, so that it is kept whole */
      isWhole: z.boolean().optional(),
    })
    .optional(),
  /** it is what is left of one that no step trains */
  cut: CutCause.optional(),
});
export type Prompt = z.infer<typeof Prompt>;

/** More turns than an episode has. */
const maxTurns = 10_000;

/** What a turn of the policy's has earned by itself. */
export const TurnReward = z.object({
  /** behind its last token, which the policy chose, counted in the episode's `tokens` */
  end: z.int().positive(),
  reward: z.number(),
});
export type TurnReward = z.infer<typeof TurnReward>;

/**
 * One interaction, single- or multi-turn. `tokens` is prompt then everything after it; the parallel arrays have one
 * entry for every token of `tokens`. `mask` is 1 where the policy chose the token and 0 for prompt and tool tokens.
 * W1 every episode has a policy version for each of its tokens: `policyVersions` has the version that chose each token (-1 where the policy did not choose).
 */
export const Episode = z.object({
  promptId: z.string(),
  promptLength: z.int().nonnegative(),
  tokens: int32,
  mask: float32,
  /**
   * log-probability of each token under the distribution that it was sampled from, which is the policy's at `temperature`;
   * 0 where mask is 0
   */
  logprobs: float32,
  /** divides the logits wherever this episode is sampled, scored or trained on */
  temperature: z.number().nonnegative(),
  policyVersions: int32,
  /** the kind of engine that sampled it, whose log-probabilities may be others' by what their kernels differ; absent means the trainer's */
  engine: z.string().optional(),
  finishReason: FinishReason,
  /** all that it has earned */
  reward: z.number(),
  /** when it has earned which parts of `reward`, in order; the rest comes with its last token, and all of it where this is absent */
  turnRewards: z.array(TurnReward).max(maxTurns).optional(),
  /** log-probabilities recomputed by inference, at `temperature` as the reference's are; absent until then */
  oldLogprobs: float32.optional(),
  refLogprobs: float32.optional(),
  /** a critic's estimate before each token of what the episode will still be worth; 0 where mask is 0 */
  values: float32.optional(),
});
export type Episode = z.infer<typeof Episode>;

/** All samples of one prompt: what group-relative algorithms normalise over. */
export const EpisodeGroup = z.object({
  promptId: z.string(),
  episodes: z.array(Episode).min(1),
  /** of the prompt */
  metadata: z.record(z.string(), z.unknown()).optional(),
});
export type EpisodeGroup = z.infer<typeof EpisodeGroup>;

/** Smallest temperature but 0: logits divided by a smaller one run out of float32, and are as good as greedy before. */
export const minTemperature = 1e-3;
/** Far beyond it logits are all alike. */
const maxTemperature = 1e4;

/** That completions are explored at. */
export const Temperature = z.number().min(minTemperature).max(maxTemperature);

/** Samples for `CompletionRequest`s. Temperature 0 is greedy. */
export const Sampling = z.strictObject({
  maxTokens: z.int().positive(),
  temperature: z
    .number()
    .refine((value) => value === 0 || Temperature.safeParse(value).success, {
      error: `allowed is 0, or a number from ${minTemperature} to ${maxTemperature}`,
    })
    .default(1),
  stopTokens: z.array(z.int().nonnegative()).default([]),
  /** Two calls with the same weights, prompts and seed return the same tokens. */
  seed: z.int().nonnegative().default(0),
});
export type Sampling = z.infer<typeof Sampling>;

/** What a generation engine returns for one prompt: the chosen tokens only. */
export type Completion = {
  readonly tokens: Int32Array;
  /** of the distribution that each token was sampled from; at temperature 0, which is certain, the model's own at 1 */
  readonly logprobs: Float32Array;
  /** that the tokens were sampled at */
  readonly temperature: number;
  readonly finishReason: FinishReason;
  /** of the weights that it ended with */
  readonly policyVersion: number;
  /** W1 which version chose which of the tokens; absent: `policyVersion` chose all, but for those that had begun elsewhere */
  readonly versions?: VersionRuns | undefined;
};

/**
 * A rectangle of `rows` sequences padded to `columns` tokens, row-major. Entry `[r, t]` of `weights`, `advantages`,
 * `oldLogprobs`, `refLogprobs`, `returns` and `oldValues` belongs to the *prediction of token t* (so entry `[r, 0]` is
 * always unused). `weights` holds both the mask and the normalisation: an engine's loss is the plain sum of
 * `weights * term`, so partial batches accumulate exactly. Whatever stands at an entry of weight 0 is never used.
 */
export type TrainBatch = {
  readonly rows: number;
  readonly columns: number;
  readonly tokens: Int32Array;
  /** `[rows]`: the policy of a row is the softmax of its logits divided by this; absent means 1 */
  readonly temperatures?: Float32Array | undefined;
  readonly weights: Float32Array;
  readonly advantages?: Float32Array | undefined;
  readonly oldLogprobs?: Float32Array | undefined;
  readonly refLogprobs?: Float32Array | undefined;
  /** what a critic regresses to, and its estimates when the episode was collected */
  readonly returns?: Float32Array | undefined;
  readonly oldValues?: Float32Array | undefined;
};

/** What `forwardBackward` minimises; built by `learning`, executed by engines. */
export type LossSpec =
  | { readonly type: "cross-entropy" }
  | {
      readonly type: "policy-gradient";
      /**
       * `token`: one importance ratio a token (PPO, GRPO); `sequence`: exp(mean log-ratio) of the row (GSPO);
       * `sequence-product`: exp(sum of log-ratios), the row as one action (RLOO).
       */
      readonly ratio: "token" | "sequence" | "sequence-product";
      /** `clipped` (default): PPO's; `cispo`: the clipped ratio, held constant, times the advantage and the log-probability */
      readonly surrogate?: "clipped" | "cispo" | undefined;
      /** ratio is clipped to [1 - clipLow, 1 + clipHigh] */
      readonly clipLow: number;
      readonly clipHigh: number;
      /** PPO's lower bound for negative advantages (dual clip); absent means none */
      readonly dualClip?: number | undefined;
      /** coefficient of the estimate of KL(policy || reference); needs refLogprobs when positive */
      readonly klCoefficient: number;
      /** with d = log π − log π_ref, `k2` is d² / 2 and `k3` (default) is exp(−d) − 1 + d */
      readonly klEstimator?: "k2" | "k3" | undefined;
      readonly entropyCoefficient: number;
      /** trains the critic too; needs `returns` and `oldValues`, and a model with a value head */
      readonly value?: ValueLoss | undefined;
    };

/**
 * Log-ratios, and differences to the reference's log-probabilities, count as at most this far from 0, in nats, and have no
 * gradient beyond: exp(20) is finite in float32 with every weight, and a ratio of e^20 says as much as a larger one.
 */
export const maxLogRatio = 20;

/** Half the squared error between value and return, times `coefficient`. */
export type ValueLoss = {
  readonly coefficient: number;
  /** how far a value may move from its old one before moving further stops paying (PPO's value clip) */
  readonly clip: number;
};

/** Sums over a batch, weighted as the loss is; divide by the sum of weights for means. */
export type LossMetrics = {
  readonly loss: number;
  readonly weight: number;
  readonly kl: number;
  readonly entropy: number;
  readonly clipFraction: number;
  /** half the squared error of the values, clipped as in the loss, before its coefficient; 0 without a critic */
  readonly valueLoss: number;
};

/** Named parameters with shapes, flat row-major data, and the policy version they are. */
export type Weights = {
  readonly policyVersion: number;
  readonly checksum: string;
  /** checksum of the ticket that published them, where one did: it names them then, whichever way they came */
  readonly ticketChecksum?: string | undefined;
  readonly parameters: readonly {
    readonly name: string;
    readonly shape: readonly number[];
    readonly data: Float32Array;
  }[];
};
