import { z } from "zod";
import { type ErrorRecord, maxCauseDepth } from "./errors.ts";
import { Granularity, PlacementMode } from "./plan.ts";

/**
 * Everything a run tells whoever watches it: the terminal, the dashboard, the event file in its folder. A view is a
 * pure fold over these events, so a recorded run looks the same as a live one.
 */

const atMs = z.number().nonnegative().describe("when, in milliseconds since the Unix epoch");
const step = z.int().nonnegative().describe("steps count from 1; 0 is before the first one");
/** Any number: a diverged loss is NaN or infinite, and a person must see that. */
const measured = z.custom<number>((value) => typeof value === "number", { error: "expected a number" });
const metrics = z.record(z.string(), measured);

/** Shares of a window of wall time, averaged over the ranks of a component; they add up to 1. */
export const UtilisationShares = z.object({
  compute: z.number().min(0).max(1),
  lockWait: z.number().min(0).max(1),
  channelWait: z.number().min(0).max(1),
  transfer: z.number().min(0).max(1),
  idle: z.number().min(0).max(1),
});
export type UtilisationShares = z.infer<typeof UtilisationShares>;

/** What `treadle run --json` prints. A reward or accuracy that was never measured is null. Times are in seconds. */
export const RunSummary = z.strictObject({
  runId: z.string(),
  /** of the plan under which the run ended */
  mode: z.string(),
  steps: z.int().nonnegative(),
  seconds: z.number().nonnegative(),
  rewardFirst: z.number().nullable(),
  rewardLast: z.number().nullable(),
  /** of the untrained policy, where the workflow reports that; otherwise the first reported */
  evalBefore: z.number().nullable(),
  /** the last before the first step, after what a workflow does once, such as an imitation */
  evalAtStart: z.number().nullable(),
  evalAfter: z.number().nullable(),
  tokensPerSecond: z.number().nonnegative(),
  stepSeconds: z.strictObject({
    mean: z.number().nonnegative(),
    p50: z.number().nonnegative(),
    p95: z.number().nonnegative(),
  }),
  policyVersion: z.int().nonnegative(),
  restarts: z.int().nonnegative(),
});
export type RunSummary = z.infer<typeof RunSummary>;

/** Where the plan put one component. */
export const PlacementRow = z.object({
  component: z.string(),
  devices: z.array(z.string()),
  mode: PlacementMode,
  granularity: Granularity.optional(),
});
export type PlacementRow = z.infer<typeof PlacementRow>;

const ErrorOrigin = z.object({
  worker: z.string().optional(),
  node: z.string().optional(),
  method: z.string().optional(),
  step: z.number().optional(),
  logTail: z.array(z.string()).optional(),
});

const ErrorRecordAlone = z.object({
  code: z.string(),
  message: z.string(),
  details: z.record(z.string(), z.unknown()).optional(),
  origin: ErrorOrigin.optional(),
  stack: z.string().optional(),
});

/** Causes deeper than what a process sends are left out; a shape that named itself would follow a hostile chain for ever. */
export const ErrorRecordShape: z.ZodType<ErrorRecord> = Array.from({ length: maxCauseDepth }).reduce<
  z.ZodType<ErrorRecord>
>((cause) => ErrorRecordAlone.extend({ cause: cause.optional() }), ErrorRecordAlone);

/** Characters of a prompt, and of what follows it, in an event. */
export const maxSampleLength = 400;

export const RunEvent = z.discriminatedUnion("type", [
  z.object({
    type: z.literal("run-started"),
    atMs,
    runId: z.string(),
    workflow: z.string(),
    mode: z.string(),
    /** how many steps this run is asked for in all, resumed ones included */
    steps: z.int().nonnegative(),
    folder: z.string(),
    /** the last step that an earlier runner of the same run finished */
    resumedFrom: step.optional(),
  }),
  z.object({
    type: z.literal("plan"),
    atMs,
    /** with `placement.mode: auto`: the plan measures, is tried, or was chosen */
    phase: z.enum(["profiling", "trial", "chosen"]).optional(),
    mode: PlacementMode,
    explanation: z.array(z.string()),
    placement: z.array(PlacementRow),
  }),
  z.object({
    type: z.literal("phase"),
    atMs,
    /** `launching`, `compiling`, `warm-up`, `profiling`, `planning`, `evaluating`, `training`, `stopping`, … */
    name: z.string(),
    done: z.number().nonnegative().optional(),
    total: z.number().nonnegative().optional(),
  }),
  z.object({ type: z.literal("step-started"), atMs, step }),
  z.object({
    type: z.literal("step-finished"),
    atMs,
    step,
    seconds: z.number().nonnegative(),
    /** what the workflow reported; `reward` is drawn as a curve */
    metrics,
    /** tokens generated in the step */
    tokens: z.number().nonnegative(),
    policyVersion: z.int().nonnegative().optional(),
    /** seconds of the step by component, where they are known */
    componentSeconds: z.record(z.string(), z.number().nonnegative()).optional(),
  }),
  z.object({ type: z.literal("evaluation"), atMs, step, accuracy: measured, metrics: metrics.optional() }),
  z.object({ type: z.literal("checkpoint"), atMs, step, path: z.string() }),
  z.object({ type: z.literal("worker-started"), atMs, worker: z.string(), pid: z.int().nonnegative().optional() }),
  z.object({
    type: z.literal("worker-died"),
    atMs,
    worker: z.string(),
    pid: z.int().nonnegative().optional(),
    code: z.int().nullish(),
    signal: z.string().nullish(),
    reason: z.string(),
  }),
  z.object({
    type: z.literal("worker-restarted"),
    atMs,
    worker: z.string(),
    pid: z.int().nonnegative().optional(),
    reason: z.string().optional(),
    /** where the time went, in seconds, from its predecessor's last sign of life */
    recovery: z
      .object({
        detection: z.number().nonnegative(),
        placement: z.number().nonnegative(),
        start: z.number().nonnegative(),
        state: z.number().nonnegative(),
        redone: z.number().nonnegative(),
      })
      .optional(),
  }),
  z.object({
    type: z.literal("queue"),
    atMs,
    channel: z.string(),
    depth: z.number().nonnegative(),
    capacity: z.number().positive().optional(),
  }),
  z.object({ type: z.literal("utilisation"), atMs, components: z.record(z.string(), UtilisationShares) }),
  z.object({
    type: z.literal("waiting"),
    atMs,
    who: z.string(),
    on: z.string(),
    /** how long it has waited already; 0 says that the wait is over */
    seconds: z.number().nonnegative(),
  }),
  z.object({
    type: z.literal("log"),
    atMs,
    worker: z.string(),
    line: z.string(),
    level: z.enum(["trace", "debug", "info", "warn", "error", "fatal"]),
  }),
  /** one of the episodes that a rank left for people to read, cut to what a line shows */
  z.object({
    type: z.literal("sample"),
    atMs,
    step,
    worker: z.string(),
    reward: measured,
    prompt: z.string().max(maxSampleLength),
    /** what policy and tools wrote after it */
    text: z.string().max(maxSampleLength),
  }),
  z.object({ type: z.literal("run-finished"), atMs, summary: RunSummary }),
  z.object({ type: z.literal("run-failed"), atMs, error: ErrorRecordShape }),
]);
export type RunEvent = z.infer<typeof RunEvent>;
