/** What ranks of one rollout group tell each other of the episodes that they share. */
import { FinishReason } from "@treadle/contracts";
import { z } from "zod";

const tokenArray = z.custom<Int32Array>((value) => value instanceof Int32Array);

/** From and to, counted after the prompt. */
const Stretch = z.tuple([z.int().nonnegative(), z.int().nonnegative()]);

/** What an episode has: all after its prompt, and where in it a tool's answers stand. */
export const EpisodeState = z.strictObject({
  tokens: tokenArray,
  logprobs: z.custom<Float32Array>((value) => value instanceof Float32Array),
  answers: z.array(Stretch),
});
export type EpisodeState = z.infer<typeof EpisodeState>;

/** An episode in one attempt, by its owner's number. */
const attempt = { episode: z.int().nonnegative(), attempt: z.int().positive() };

export const RankMessage = z.discriminatedUnion("type", [
  /** the first word of a rank in a call; who has other weights shares nothing */
  z.strictObject({ type: z.literal("hello"), policyVersion: z.int(), places: z.int().positive() }),
  /** to whoever shall run it */
  z.strictObject({
    type: z.literal("run"),
    ...attempt,
    /** of its tool's trajectory */
    name: z.string(),
    prompt: tokenArray,
    key: z.int().nonnegative(),
    priority: z.number(),
    state: EpisodeState.optional(),
  }),
  z.strictObject({ type: z.literal("leave"), ...attempt }),
  /** to the owner: it has called a tool */
  z.strictObject({ type: z.literal("turn"), ...attempt, state: EpisodeState }),
  /** to the owner: the tool has answered, and it goes on, or has left */
  z.strictObject({
    type: z.literal("answered"),
    ...attempt,
    state: EpisodeState,
    toolSeconds: z.number().nonnegative(),
    hasToolFailed: z.boolean(),
    hasLeft: z.boolean(),
  }),
  z.strictObject({
    type: z.literal("ended"),
    ...attempt,
    state: EpisodeState,
    finishReason: FinishReason,
    policyVersion: z.int(),
  }),
  /** episodes of others than the receiver that the sender computes or has queued */
  z.strictObject({ type: z.literal("load"), others: z.int().nonnegative() }),
  /** what the sender took is delivered, and it takes no more */
  z.strictObject({ type: z.literal("done") }),
  /** the sender's call has failed */
  z.strictObject({ type: z.literal("gone") }),
]);
export type RankMessage = z.infer<typeof RankMessage>;

/** All that one rank tells another in one tick. */
export const Envelope = z.strictObject({
  /** of the sender's call: a process that starts the call over has another */
  nonce: z.string(),
  sequence: z.int().nonnegative(),
  messages: z.array(RankMessage),
});
