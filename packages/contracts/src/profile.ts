import { z } from "zod";

import { TagMemory } from "./device-memory.ts";
import { FlowGraph } from "./flow-graph.ts";
import { Granularity, PlacementMode } from "./plan.ts";

const name = z.string().min(1);
const milliseconds = z.number().nonnegative();
const seconds = z.number().nonnegative();
const count = z.int().positive();

/** What one channel did within one call on one rank. */
export const ChannelObservation = z.object({
  channel: name,
  role: z.enum(["source", "sink"]),
  items: z.int().nonnegative(),
  bytes: z.number().nonnegative(),
  /** sums of the natural logarithm of each item's bytes, and of its square: how unequal items are */
  logBytes: z.tuple([z.number(), z.number()]).optional(),
  /** takes that brought items, or puts */
  times: z.int().nonnegative(),
  /** its items were taken one by one, and each went on as soon as it was done */
  streamed: z.boolean().optional(),
  /** spent waiting for items or credit */
  waitMs: milliseconds,
  /** the median of the waits within twice the shortest: what asking costs where nothing has to be waited for */
  askMs: milliseconds.optional(),
});
export type ChannelObservation = z.infer<typeof ChannelObservation>;

/** Sums over sequences, of which prompts and responses are told apart. */
export const SequenceSums = z.object({
  count,
  promptTokens: z.number().nonnegative(),
  /** sums of the natural logarithm of each response's tokens, and of its square */
  logResponse: z.tuple([z.number(), z.number()]),
  longestResponse: count,
});
export type SequenceSums = z.infer<typeof SequenceSums>;

/**
 * What one call cost one rank, as its process measured it; comes with the reply to a call that is observed.
 *
 * Busy is what is left of the call when waits for devices, items and credit are taken away. A batch is what one take
 * brought; its busy time lasts until the next take, so the fixed part of a method is in its first and last batch.
 */
export const CallObservation = z.object({
  busyMs: milliseconds,
  lockWaitMs: milliseconds,
  /** the mean of the swaps since the call before, 0 where there was none: in a cycle there are many */
  onloadMs: milliseconds,
  offloadMs: milliseconds,
  /** processor time of the process within the busy time */
  cpuMs: milliseconds,
  /** of the busy time, ready to run without a processor, because others had them; absent where nobody counts it */
  queuedMs: milliseconds.optional(),
  /** of the worker's memory on each of its devices, at the end of the call; by tag where its engine tells */
  memoryBytes: z.number().nonnegative(),
  tags: z.array(TagMemory).optional(),
  channels: z.array(ChannelObservation),
  /** other workers that the call called, or (`method` absent) sent messages to */
  peers: z.array(z.object({ component: name, method: name.optional(), times: count })).default([]),
  /** of what a model has sampled: how many sequences, and their tokens, as far as the worker tells */
  sequences: SequenceSums.optional(),
  /** batches of equal size together */
  batches: z.array(z.object({ channel: name, items: count, times: count, busyMs: milliseconds })),
});
export type CallObservation = z.infer<typeof CallObservation>;

/** An observation with the call that it is of. */
export type ObservedCall = CallObservation & {
  readonly component: string;
  readonly method: string;
  readonly rank: number;
  /** of the run's calls: the workflow made one with a larger number later */
  readonly sequence: number;
  readonly step: number | undefined;
  readonly durationMs: number;
};

/** Seconds that a component was busy, on the rank that was busy longest, at one device count and chunk size. */
export const ProfileSample = z.strictObject({
  /** devices of all its ranks together */
  devices: count,
  /** items of the step's batch that it handled at a time, over all ranks; the whole batch when it was not chunked */
  items: z.number().positive(),
  /** that they would be if every rank had as many as the busiest one, where that is more: ranks take whole items */
  wholeItems: z.number().positive().optional(),
  /** mean of what was accepted */
  seconds,
  /** median absolute deviation over the median */
  spread: z.number().nonnegative(),
  accepted: count,
  rejected: z.int().nonnegative(),
  /** how many times as long its busiest rank took as a rank takes for the largest fair share on average; of a whole batch on several ranks */
  unevenness: z.number().min(1).optional(),
  /** others used the processors meanwhile and no sample was free of it: the seconds are what it would have taken alone */
  contended: z.boolean(),
  /** processor seconds for each of these seconds: about 1 of what computes here, less of what waits, 0 on other devices */
  processorShare: z.number().nonnegative().optional(),
});
export type ProfileSample = z.infer<typeof ProfileSample>;

/**
 * `base + perItem * items / devices^alpha` seconds, and those of the longest item where a batch waits for it; fitted to
 * samples. RLinf §3.4 fits a polynomial.
 */
export const TimeFit = z.strictObject({
  base: seconds,
  perItem: seconds,
  alpha: z.number(),
  /**
   * of the longest item of a chunk, for each median length that it has; and of the longest of all in a step. `streamed`: items
   * of a step, where they stream, so that no chunk waits for its longest: its seconds are a part of those until all have ended
   */
  longest: z.strictObject({ perLength: seconds, ofAll: seconds, streamed: count.optional() }).optional(),
  /** done once a step, outside of batches, of which a chunk has its share whatever else it costs; `batch`: items of a step */
  once: z.strictObject({ seconds, batch: count }).optional(),
  /** the mean of |fitted - measured| / measured over the samples, without what is done once */
  relativeError: z.number().nonnegative(),
});
export type TimeFit = z.infer<typeof TimeFit>;

/** A language model, by what its costs depend on most. */
export const ModelSizes = z.strictObject({ parameters: count, layers: count, width: count, vocabSize: count });
export type ModelSizes = z.infer<typeof ModelSizes>;

/** How long sequences are: the median of responses, the standard deviation of their logarithm, and the longest of them. */
export const SequenceLengths = z.strictObject({
  promptTokens: count,
  responseTokens: count,
  spread: z.number().nonnegative(),
  maxResponseTokens: count,
});
export type SequenceLengths = z.infer<typeof SequenceLengths>;

export const ComponentProfile = z.strictObject({
  /** hash of its class, configuration and launch options: what its times depend on */
  key: z.string().min(1),
  /** the workflow that has measured it, where that is another one, and when */
  measuredBy: z.strictObject({ workflow: z.string().min(1), createdAt: z.iso.datetime() }).optional(),
  deviceKind: z.string().min(1).optional(),
  /** that it ran, where its configuration names one */
  model: ModelSizes.optional(),
  /** it was measured without devices: where samples count devices, they count its ranks */
  devices: z.literal("none").optional(),
  /** devices that one rank spans; it can use whole multiples */
  devicesPerRank: count,
  /** the fewest and most devices that its ranks can use together */
  minDevices: count,
  maxDevices: count,
  /** its ranks work in step: they get their devices together, and a call ends on all of them at once */
  gang: z.boolean().optional(),
  samples: z.array(ProfileSample).min(1),
  fit: TimeFit.nullable(),
  /** `tags`: what of it leaves and comes back by itself, where the engine tells; the rest stays from the first load on */
  memory: z.array(
    z.strictObject({
      devices: count,
      bytesPerDevice: z.number().nonnegative(),
      tags: z.array(TagMemory).min(1).optional(),
    }),
  ),
  /** of all of its memory */
  onloadSeconds: seconds,
  offloadSeconds: seconds,
  /** a step's calls that take from no channel, such as pulling weights; they overlap nothing */
  serialSeconds: seconds,
  /** of a step, outside of batches, such as an optimiser step at the end; samples of chunks have their share of it */
  onceSeconds: seconds.optional(),
  /** one take of items that are there, or a put that finds room; in `samples` as often as a chunk needs it */
  askSeconds: seconds.optional(),
  /** of processors, in a step's other calls, on all ranks together */
  processorSeconds: seconds.optional(),
  /** standard deviation of the logarithm of what an item takes, such as the length of a response; absent where items are alike */
  lengthSpread: z.number().nonnegative().optional(),
  /** each of its items goes on as soon as it is done, and the next one takes its place */
  streams: z.boolean().optional(),
});
export type ComponentProfile = z.infer<typeof ComponentProfile>;

/** What a component does with the model that it is configured with. */
export type ModelWork = "generation" | "training" | "scoring";

/** What a workflow costs on some hardware. A readable file; reused while its key matches, refreshed when a run drifts. */
export const Profile = z.strictObject({
  version: z.literal(1),
  workflow: z.string().min(1),
  createdAt: z.iso.datetime(),
  hardware: z.strictObject({
    key: z.string().min(1),
    description: z.string(),
    /** its accelerators, as their vendor calls them, where all have one name */
    accelerator: z.string().min(1).optional(),
    /** cores behind each device of kind `cpu`; below 1, components that run at once share cores */
    coresPerSlot: z.number().positive().optional(),
  }),
  graph: FlowGraph,
  /** of what was sampled meanwhile; `perItem`: sequences of an item of the batch */
  sequences: SequenceLengths.extend({ perItem: z.number().positive() }).optional(),
  components: z.record(name, ComponentProfile),
  /** what a step takes besides its components, where they take turns: the runner's own work, and messages on their way */
  overheadSeconds: seconds.default(0),
  /** of any other step, for each rank that it calls; absent where too little is known, and the same holds for every step */
  rankOverheadSeconds: seconds.optional(),
  /** of any other step, whatever ranks it calls */
  baseOverheadSeconds: seconds.optional(),
  /** whole steps as measured, by how they ran; `seconds` is the median */
  steps: z.array(
    z.strictObject({
      /** names the plan: who had which devices, and chunks of what size */
      layout: z.string(),
      mode: PlacementMode,
      devices: count,
      granularity: Granularity,
      seconds,
      /** standard deviation of the logarithm of what they took */
      deviation: z.number().nonnegative().default(0),
      samples: count,
      meanSeconds: seconds.optional(),
    }),
  ),
});
export type Profile = z.infer<typeof Profile>;
