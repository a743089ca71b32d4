import { z } from "zod";

/** A stretch of an episode that one party wrote: the prompt, the policy, or a tool. */
const Turn = z.object({
  by: z.enum(["prompt", "policy", "tool"]),
  text: z.string(),
  /** one piece of text a token; of the policy's turns, with its log-probabilities and the policy versions that chose them */
  pieces: z.array(z.string()).optional(),
  logprobs: z.array(z.number()).optional(),
  versions: z.array(z.int()).optional(),
  /** of a turn of the policy's that was rewarded by itself */
  reward: z.number().optional(),
});

/**
 * One episode as a person reads it: what a rollout worker leaves in `<run>/artifacts/completions/`, one line an episode, a
 * file for each step that is sampled and each rank.
 */
export const CompletionRecord = z.object({
  step: z.int().nonnegative(),
  worker: z.string(),
  promptId: z.string(),
  reward: z.number(),
  /** tokens after the prompt */
  length: z.int().nonnegative(),
  finishReason: z.string(),
  /** what a verifiable reward compares with */
  answer: z.string().optional(),
  /** of the prompt, as its data set has it; what is larger than `maxMetadataBytes` is left out */
  metadata: z.record(z.string(), z.unknown()).optional(),
  turns: z.array(Turn),
});
export type CompletionRecord = z.infer<typeof CompletionRecord>;

/** So much of it is in each record. */
export const maxMetadataBytes = 2 ** 16;

/** Where records lie below a run's artifacts. */
export const completionFolder = "completions";
