/** What ranks of one rollout group tell each other of the episodes that they share. */
import { FinishReason } from "@treadle/contracts";
import { mostTold } from "@treadle/trajectories";
import { z } from "zod";

const tokenArray = z.custom<Int32Array>((value) => value instanceof Int32Array);

const numbersOf = <T extends Int32Array | Float64Array>(
  kind: new (length: number) => T,
  isValid: (each: number) => boolean,
) =>
  z.custom<T>(
    (value) => value instanceof kind && value.length <= mostTold && value.every(isValid),
    `expected at most ${mostTold} numbers that are allowed`,
  );

/** From and to, counted after the prompt. */
const Stretch = z.tuple([z.int().nonnegative(), z.int().nonnegative()]).readonly();

/** What an episode has: all after its prompt, and where in it a tool's answers stand. */
export const EpisodeState = z.strictObject({
  tokens: tokenArray,
  logprobs: z.custom<Float32Array>((value) => value instanceof Float32Array),
  answers: z.array(Stretch),
});
export type EpisodeState = z.infer<typeof EpisodeState>;

/** An episode in one attempt, by its owner's number. */
const attempt = { episode: z.int().nonnegative(), attempt: z.int().positive() };

/** An episode that has ended, by the name that every owner of it gives it. */
export const KeptEpisode = z.strictObject({
  name: z.string(),
  state: EpisodeState,
  finishReason: FinishReason,
  policyVersion: z.int(),
});
export type KeptEpisode = z.infer<typeof KeptEpisode>;

/** What a rank has, as it tells another. */
export const RankLoad = z.strictObject({
  /** of others than the receiver, that it computes or has queued */
  active: z.int().nonnegative(),
  /** its own that wait for a place */
  waiting: z.int().nonnegative(),
  /** of the receiver's that it computes or has queued */
  yours: z.int().nonnegative(),
});
export type RankLoad = z.infer<typeof RankLoad>;

export const noLoad: RankLoad = { active: 0, waiting: 0, yours: 0 };

/** Where an episode shall go on, and what was predicted and known when that was decided. */
export const Move = z.strictObject({
  to: z.int().nonnegative(),
  predictedTokens: z.number().nonnegative(),
  /** episodes at the engine of its rank, and of that one */
  loadHere: z.int().nonnegative(),
  loadThere: z.int().nonnegative(),
});
export type Move = z.infer<typeof Move>;

/** What the sender has unfinished, as far as it has changed: `ToldEpisodes`. What has more to tell says so in a next message. */
const EpisodesMessage = z
  .strictObject({
    type: z.literal("episodes"),
    episodes: numbersOf<Int32Array>(Int32Array, (each) => each >= 0),
    tokens: numbersOf<Float64Array>(Float64Array, (each) => each >= 0 && Number.isFinite(each)),
    remaining: numbersOf<Float64Array>(Float64Array, (each) => each >= 0 && Number.isFinite(each)),
    homes: numbersOf<Int32Array>(Int32Array, (each) => each >= -1),
    ended: numbersOf<Int32Array>(Int32Array, (each) => each >= 0),
    measured: z
      .strictObject({
        logSd: z.number().nonnegative(),
        slope: z.number().nonnegative().optional(),
        mostTokens: z.number().nonnegative().optional(),
      })
      .optional(),
    /** of which a next message tells (UG6) */
    numUntold: z.int().nonnegative(),
  })
  .refine(
    ({ episodes, tokens, remaining, homes }) =>
      [tokens, remaining, homes].every(({ length }) => length === episodes.length),
    "expected as many tokens, remaining ones and homes as episodes",
  );

export const RankMessage = z.discriminatedUnion("type", [
  /** the first word of a rank in a call; one of other weights shares nothing */
  z.strictObject({
    type: z.literal("hello"),
    /** as `Engine.weightsId` */
    weightsId: z.string().optional(),
    places: z.int().positive(),
    /** that a token takes alone there, where ranks differ by their devices and it is known */
    tokenSeconds: z.number().positive().optional(),
    /** what is known to have ended, of ranks that died */
    kept: z.array(KeptEpisode),
  }),
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
  /** once the tool has answered that it called behind so many answers */
  z.strictObject({ type: z.literal("leave"), ...attempt, numAnswers: z.int().nonnegative(), move: Move }),
  /** from its owner, after a turn: which goes first when it waits next */
  z.strictObject({ type: z.literal("priority"), ...attempt, priority: z.number() }),
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
  /** to the owner: what a tool held of it is gone, so it begins again */
  z.strictObject({ type: z.literal("lost"), ...attempt }),
  z.strictObject({ type: z.literal("load"), load: RankLoad }),
  EpisodesMessage,
  /** of ranks that died: what the sender ran for them to the end */
  z.strictObject({ type: z.literal("kept"), episodes: z.array(KeptEpisode) }),
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
