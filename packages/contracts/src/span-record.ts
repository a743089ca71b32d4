import { z } from "zod";

/** What a stretch of a worker's time was spent on. */
export const SpanCategory = z.enum([
  "call",
  "lock-wait",
  "channel-wait",
  "onload",
  "offload",
  "compute",
  /** one of several that a rank computes at once */
  "episode",
  "transfer",
  "step",
  "evaluation",
  "checkpoint",
  "failure",
]);
export type SpanCategory = z.infer<typeof SpanCategory>;

export const AttributeValue = z.union([z.string(), z.number(), z.nan(), z.boolean(), z.null()]);
export type AttributeValue = z.infer<typeof AttributeValue>;
export const Attributes = z.record(z.string(), AttributeValue);
export type Attributes = z.infer<typeof Attributes>;

const step = z.int().nonnegative().optional();
const devices = z.array(z.string()).optional();
const attributes = Attributes.optional();
const spanId = z
  .string()
  .regex(/^[0-9a-f]{16}$/)
  .optional();

/** A stretch of time. `startMs` is in milliseconds since the Unix epoch, with a resolution below a microsecond. */
export const SpanRecord = z.object({
  kind: z.literal("span"),
  name: z.string(),
  category: SpanCategory,
  startMs: z.number(),
  durationMs: z.number().nonnegative(),
  step,
  devices,
  /** the same id on a span that sends and on one that receives draws an arrow between them */
  flowOut: z.string().optional(),
  flowIn: z.string().optional(),
  /** present where spans are exported to others; unique over all processes */
  id: spanId,
  /** the id of the span within which this one began, in whatever process */
  parent: spanId,
  attributes,
});
export type SpanRecord = z.infer<typeof SpanRecord>;

export const InstantRecord = z.object({
  kind: z.literal("instant"),
  name: z.string(),
  category: SpanCategory,
  startMs: z.number(),
  step,
  devices,
  parent: spanId,
  attributes,
});
export type InstantRecord = z.infer<typeof InstantRecord>;

/** Values of one named series at a moment: a queue's depth, bytes of memory in use. */
export const CounterRecord = z.object({
  kind: z.literal("counter"),
  name: z.string(),
  startMs: z.number(),
  values: z.record(z.string(), z.number()),
});
export type CounterRecord = z.infer<typeof CounterRecord>;

export const TraceRecord = z.discriminatedUnion("kind", [SpanRecord, InstantRecord, CounterRecord]);
export type TraceRecord = z.infer<typeof TraceRecord>;

/** What one drain of a tracer ships to the runner; a trace file has each in a line, in columns. */
export const SpanBatch = z.object({
  /** `rollout/0`; the part before the slash is the component */
  worker: z.string(),
  pid: z.int().nonnegative(),
  /** records that the ring buffer had to give up since the previous batch */
  dropped: z.int().nonnegative(),
  records: z.array(TraceRecord),
});
export type SpanBatch = z.infer<typeof SpanBatch>;

/** `rollout/0` → `rollout`; a name without a rank is its own component. */
export function componentOf(worker: string): string {
  const slash = worker.lastIndexOf("/");
  return slash < 0 ? worker : worker.slice(0, slash);
}
