/**
 * What a run that records itself writes down: a header, then a line for each input of its state machine, `[tie,turn]`, then an
 * end. The tie is a hash of the turn's text and of the tie before it, the first of the header's. So whatever was altered, left
 * out, put in or moved is found at the first line that is not as it was written.
 */
import { z } from "zod";
import { ErrorRecordShape } from "./events.ts";

/** Raised whenever what is recorded, or what is decided, is written differently. */
export const recordingFormat = 3;

const nonNegative = z.number().nonnegative();

export const RecordingHeader = z.strictObject({
  format: z.literal(recordingFormat),
  runId: z.string(),
  /** wall clock at the first input, and the same on the run's own clock */
  startedAt: z.iso.datetime(),
  startMs: z.number(),
  /** of `RunnerState` */
  options: z.strictObject({
    supervision: z.strictObject({
      maxRestarts: nonNegative,
      restartWindowMs: nonNegative,
      heartbeatTimeoutMs: nonNegative,
      stallMs: nonNegative,
      lockTimeoutMs: nonNegative,
      startTimeoutMs: nonNegative,
    }),
    rejoinMs: nonNegative,
    placeWaitMs: nonNegative,
    maxStaleness: nonNegative,
    runsAhead: z.boolean().optional(),
    isLeased: z.boolean().optional(),
  }),
});
export type RecordingHeader = z.infer<typeof RecordingHeader>;

/** When, in milliseconds of the run's own clock; the digest of the effects; and the input. */
export const RecordedTurn = z.tuple([z.number(), z.int().nonnegative(), z.looseObject({ type: z.string() })]);
export type RecordedTurn = z.infer<typeof RecordedTurn>;

/** The last line: why nothing follows, and after how many inputs; its tie is over both. */
export const RecordingEnd = z.strictObject({
  end: z.enum(["closed", "limit"]),
  inputs: z.int().nonnegative(),
  tie: z.int().nonnegative(),
});
export type RecordingEnd = z.infer<typeof RecordingEnd>;

/** Columns, since items of one put are much alike; an absent one is absent of all items. */
export const RecordedItems = z.strictObject({
  sizes: z.array(z.number()),
  keys: z.array(z.string().nullable()).optional(),
  weights: z.array(z.number().nullable()).optional(),
  priorities: z.array(z.number().nullable()).optional(),
  segments: z.array(z.string().nullable()).optional(),
});
export type RecordedItems = z.infer<typeof RecordedItems>;

/** Ours keep their code; of others, what they say. */
export const RecordedError = z.union([
  z.strictObject({ ours: ErrorRecordShape }),
  z.strictObject({ name: z.string(), message: z.string() }),
]);
export type RecordedError = z.infer<typeof RecordedError>;

export const RecordedOutcome = z.discriminatedUnion("ok", [
  z.strictObject({ ok: z.literal(true) }),
  z.strictObject({ ok: z.literal(false), error: RecordedError }),
]);
