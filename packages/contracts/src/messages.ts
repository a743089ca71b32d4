/** What the processes of a run send to each other over links: the bodies and replies of protocol.ts. */
import { z } from "zod";
import { LinksConfig } from "./config.ts";
import { ReleasableTag, TagMemory } from "./device-memory.ts";
import { ErrorRecordShape } from "./events.ts";
import { ComponentName, ExportName, NodeName, RunName, SegmentPrefix } from "./names.ts";
import { Granularity } from "./plan.ts";
import { CallObservation } from "./profile.ts";
import { StateFile, StateFileName, StateManifest } from "./state-manifest.ts";

const bytes: z.ZodType<Uint8Array, Uint8Array> = z.instanceof(Uint8Array);

/** How a worker reaches processes of other nodes, and is reached by them. */
const RemoteLinks = LinksConfig.extend({
  /** file URLs that begin with `from` are below `to` on this machine */
  projectRoot: z.object({ from: z.string(), to: z.string() }),
  /** unix socket of the relay, by which processes are reached that cannot be dialled */
  relay: z.string().optional(),
});

/** Of each rank of a group, in their order. */
const RankDevices = z.array(z.int().nonnegative()).min(1);

/** What a worker process is told before it connects. */
export const WorkerBoot = z.object({
  runId: RunName,
  component: ComponentName,
  rank: z.int().nonnegative(),
  /** how many devices each rank of the group has */
  rankDevices: RankDevices,
  incarnation: z.int().nonnegative(),
  devices: z.array(z.string()),
  node: NodeName,
  /** file URL of the module and the name that it exports the class under */
  module: z.string(),
  exportName: ExportName,
  runnerAddresses: z.array(z.string()),
  /** path of the unix socket that the worker listens on */
  listenPath: z.string(),
  token: z.string(),
  segmentPrefix: SegmentPrefix,
  seed: z.int().nonnegative(),
  /** spans are recorded, and sent to the runner */
  trace: z.boolean(),
  /** for whoever watches the run from outside: spans get ids, and counters of the process are recorded */
  spanIds: z.boolean().optional(),
  counters: z.boolean().optional(),
  /** for how long it dials a worker that is there and lets nobody in */
  startTimeoutMs: z.number().positive(),
  /** for how long it waits for another worker, in a collective or for its weights */
  peerTimeoutMs: z.number().positive(),
  /** a main thread that computes for longer than this without a pause has its stack sampled */
  stallMs: z.number().positive().optional(),
  /** set when the runner is on another node: no file and no memory is shared with it */
  remote: RemoteLinks.optional(),
});
export type WorkerBoot = z.infer<typeof WorkerBoot>;

/** All that a process that hosts a worker reads from its standard input. */
export const WorkerInput = z.object({
  boot: WorkerBoot,
  /** variables of its environment that it may have been started without */
  env: z.record(z.string(), z.string()),
});
export type WorkerInput = z.infer<typeof WorkerInput>;

/**
 * In its environment: by what its node finds everything that it has started, which its watchdog ends when the node is gone, and
 * whose node that is.
 */
export const workerVariables = {
  mark: "TREADLE_WORKER_MARK",
  group: "TREADLE_WORKER_GROUP",
  agent: "TREADLE_WORKER_AGENT",
} as const;

/** A channel as it travels in the arguments of a call. */
export const ChannelRef = z.object({
  $channel: z.string(),
  role: z.enum(["source", "sink"]),
  granularity: Granularity,
  key: z.string().optional(),
  weight: z.string().optional(),
  priority: z.string().optional(),
  /** where the schema is exported, by which producers parse what they put */
  schema: z.object({ module: z.string(), exportName: z.string() }),
  /** larger items stay with their producer */
  inlineLimitBytes: z.int().positive().optional(),
});
export type ChannelRef = z.infer<typeof ChannelRef>;

/** A worker group as it travels in the arguments of a call. */
export const GroupRef = z.object({
  $group: z.string(),
  /** far more ranks than one group has */
  size: z.int().positive().max(100_000),
  methods: z.array(z.string()),
  /** the only ranks that calls go to; absent means all */
  ranks: z.array(z.int().nonnegative()).optional(),
});
export type GroupRef = z.infer<typeof GroupRef>;

export const CallRequest = z.object({
  /** unique in the run; `sequence/rank` for calls of the runner */
  call: z.string(),
  /** program order of the runner; 0 for a call from another worker */
  sequence: z.int().nonnegative(),
  method: z.string(),
  args: z.array(z.unknown()),
  step: z.int().nonnegative().optional(),
  /** the folder that the state is saved in after the call: the rank's part of it, beside its place */
  saveIn: z.string().optional(),
  /** the reply does not wait for the files: `state.saved` follows */
  savesLater: z.boolean().optional(),
  /** the span of the caller, where spans have ids */
  parentSpan: z.string().optional(),
  /** the reply says what the call cost */
  observe: z.boolean().optional(),
});
export type CallRequest = z.infer<typeof CallRequest>;

export const CallReply = z.object({
  value: z.unknown(),
  durationMs: z.number(),
  timers: z.record(z.string(), z.number()),
  /** the files of its part */
  saved: z.array(StateFile).optional(),
  observation: CallObservation.optional(),
});
export type CallReply = z.infer<typeof CallReply>;

/** Without timers and files, as most replies are. */
export function isPlainReply(body: unknown): boolean {
  const reply = body as CallReply | null;
  if (typeof reply !== "object" || reply === null || !Number.isFinite(reply.durationMs)) return false;
  const { timers, saved, observation } = reply;
  if (saved !== undefined || observation !== undefined) return false;
  if (typeof timers !== "object" || timers === null) return false;
  return Object.getPrototypeOf(timers) === Object.prototype && isEmpty(timers);
}

function isEmpty(fields: object): boolean {
  for (const _ in fields) return false;
  return true;
}

/** What a worker asks for first: what it is configured with, and the folder of its saved state. */
export const Configuration = z.object({
  config: z.unknown(),
  stateFolder: z.string().optional(),
});
/** The method of a call that does nothing but save; no worker has one of its own of that name. */
export const savingMethod = "checkpoint";
/** What a call has saved after its reply, or why not. */
export const SavedStateMessage = z.object({
  sequence: z.int().positive(),
  files: z.array(StateFile).optional(),
  failure: ErrorRecordShape.optional(),
});
/** A piece of a file of its state, from a worker without the run's folder; the one at 0 begins the file anew. */
export const WriteStateRequest = z.object({
  folder: z.string(),
  name: StateFileName,
  offset: z.int().nonnegative(),
  data: bytes,
  /** of the file: answered when it is on the disk */
  isLast: z.boolean(),
});
export const OpenStateReply = StateManifest;
/** Of a file of the state that it was told to restore. */
export const ReadStateRequest = z.object({
  rank: z.int().nonnegative(),
  name: StateFileName,
  offset: z.int().nonnegative(),
});
/** Empty at the end of the file. */
export const ReadStateReply = bytes;
/** A file that a worker leaves for people to look at; names and sizes are checked by the runner. */
export const WriteArtifactRequest = z.object({ name: z.string(), data: bytes });
/** What a rank has learned to predict, for later runs: text that the worker reads, and the runner keeps. */
export const WritePredictorRequest = z.object({ text: z.string() });
export const KeptPredictor = z.object({ path: z.string(), text: z.string() });
export type KeptPredictor = z.infer<typeof KeptPredictor>;
/** What a rank saw of a step, for what sizes the ranks of its group; its schema is that of its class. */
export const SizingReport = z.object({ step: z.int().nonnegative(), report: z.unknown() });
/** A worker's process listens, and takes messages; calls wait until it is ready. */
export const ReachableMessage = z.object({
  addresses: z.array(z.string()),
  pid: z.int(),
  /** how it reached the runner */
  route: z.enum(["direct", "nats"]).optional(),
});
export type ReachableMessage = z.infer<typeof ReachableMessage>;
/** On each of its devices, while it is loaded: all in all, and by tag where its engine moves these one by one. */
export const WorkerMemory = z.object({
  memoryBytes: z.number().nonnegative(),
  tags: z.array(TagMemory).optional(),
});
export type WorkerMemory = z.infer<typeof WorkerMemory>;
export const ReadyMessage = WorkerMemory.extend({
  /** its class loads: the first `onload` makes it, and its saved state is restored then */
  loads: z.boolean().optional(),
});
/** What a worker has waited for longer than a moment, of others: all of it, each time that it changes. */
export const AwaitsMessage = z.object({ messages: z.array(z.object({ from: z.string(), what: z.string() })) });
/** What of the worker is moved; all where there is none. */
export const SwapRequest = z.object({ tags: z.array(ReleasableTag).optional() });
/** What stays on each of its devices all the same, what of it was to stay included. */
export const OffloadReply = z.object({ residualBytes: z.number().nonnegative() });
/** Who else gets a message by way of its receiver: names of workers, those of one node together. */
export const Onward = z.object({
  /** on the receiver's own node */
  inside: z.array(z.string()),
  nodes: z.array(z.array(z.string()).min(1)),
});
export type Onward = z.infer<typeof Onward>;
/** To a worker, of the one that it is `from`, whoever passes it on; `tag` tells streams of messages apart. */
export const MessageEnvelope = z.object({
  from: z.string(),
  /** of the process that it is from */
  incarnation: z.int().nonnegative(),
  tag: z.string(),
  value: z.unknown(),
  onward: Onward.optional(),
});
export type MessageEnvelope = z.infer<typeof MessageEnvelope>;
/** Of processes before incarnation `since` nothing counts any more; without it, of none so far. */
export const PeerDiedMessage = z.object({ worker: z.string(), since: z.int().nonnegative().optional() });
/** For whom a worker waits, in collectives and for answers, at this moment; and whether it takes no calls yet. */
export const WaitsReply = z.object({ waitsFor: z.array(z.string()), isStarting: z.boolean() });
/** A call that failed because of a peer and will not be made again. */
export const GiveUpMessage = z.object({ call: z.string() });
/** To ranks that go on while their group grows or shrinks. */
export const ResizeMessage = z.object({ rankDevices: RankDevices });
/** Answered when the worker takes messages, or, where it is to be called, is `ready`. */
export const ResolveRequest = z.object({ worker: z.string(), ready: z.boolean().optional() });
/** Where workers are, in the order in which they were asked for. */
export const NodesRequest = z.object({ workers: z.array(z.string()) });
export const NodesReply = z.object({ nodes: z.array(z.string()) });
export const ResolveReply = z.object({ addresses: z.array(z.string()), incarnation: z.int() });

/** The same bytes on a node, in a segment there. */
export const KeptCopy = z.object({ node: z.string(), segment: z.string() });
export type KeptCopy = z.infer<typeof KeptCopy>;

/**
 * An item that stays where its producer put it: a file of the run in shared memory. `index` is its place in its block,
 * where its length is 0.
 */
export const KeptItem = z.object({
  index: z.int().nonnegative(),
  segment: z.string(),
  sizeBytes: z.int().nonnegative(),
  /** where processes share no memory: the node of `segment`, and a copy on another one */
  node: z.string().optional(),
  copy: KeptCopy.optional(),
});
export type KeptItem = z.infer<typeof KeptItem>;

/**
 * Many items in one piece: `data` is their encodings one after the other, `lengths` their sizes in bytes, `shapes` the
 * names of fields that they share.
 */
export const ItemBlock = z.object({
  data: bytes,
  lengths: z.instanceof(Uint32Array),
  shapes: z.array(z.array(z.string())).optional(),
  kept: z.array(KeptItem).optional(),
});
export type ItemBlock = z.infer<typeof ItemBlock>;

/** A block with what the channel's home looks at, item by item. */
export const PackedItems = ItemBlock.extend({
  keys: z.array(z.string()).optional(),
  weights: z.instanceof(Float64Array).optional(),
  priorities: z.instanceof(Float64Array).optional(),
});
export type PackedItems = z.infer<typeof PackedItems>;

/** What becomes of a call's devices while a request of it waits. */
export const WaitTerms = z.object({
  /**
   * the call keeps them, until it says otherwise (`lock.lend`): `for-now` while its engine computes, or until it has got as far
   * as it can by itself, so that it waits for nobody yet
   */
  keeps: z.enum(["throughout", "for-now"]).optional(),
  /** as of `lock.lend`: the call lends them at once, unless it has been answered more, which may set it to work */
  numAnswered: z.int().nonnegative().optional(),
});
export type WaitTerms = z.infer<typeof WaitTerms>;
export const PutRequest = z.object({
  channel: z.string(),
  call: z.string(),
  items: PackedItems,
  ...WaitTerms.shape,
});
export type PutRequest = z.infer<typeof PutRequest>;
export const TakeRequest = z
  .object({
    channel: z.string(),
    call: z.string(),
    /** with `inGang`, what it adds to the round: 0 where others ask for its part */
    maxItems: z.int().nonnegative().optional(),
    maxWeight: z.number().positive().optional(),
    minItems: z.int().positive().optional(),
    /** items of this key only */
    key: z.string().optional(),
    /** acknowledges everything this call holds, and commits what it has put, before taking */
    acknowledge: z.boolean(),
    ...WaitTerms.shape,
    /** its items are committed one by one: the reply names them */
    streams: z.boolean().optional(),
    /** with the other ranks of its call: each gets its part of a round, which may be empty */
    inGang: z.boolean().optional(),
  })
  .refine(({ maxItems, inGang }) => maxItems !== 0 || inGang === true, {
    path: ["maxItems"],
    message: "0 only with inGang",
  });
// Without `maxItems` and `maxWeight` a take waits for the end of the stream and gets this consumer's share of it.
export type TakeRequest = z.infer<typeof TakeRequest>;
/** `null` ends the stream. */
export const TakeReply = z.union([
  z.null(),
  z.object({ blocks: z.array(ItemBlock), deliveries: z.array(z.int().nonnegative()).optional() }),
]);
export type TakeReply = z.infer<typeof TakeReply>;
/** Items of a channel, by what their take called them, and what was made of them, which becomes visible with it (C6). */
export const CommitRequest = z.object({
  channel: z.string(),
  call: z.string(),
  deliveries: z.array(z.int().nonnegative()).min(1),
  outputs: z.object({ channel: z.string(), items: PackedItems }).optional(),
  ...WaitTerms.shape,
});
export type CommitRequest = z.infer<typeof CommitRequest>;
/** Segments: read to the end, from a consumer; free to be written again, to their producer. */
export const SegmentsMessage = z.object({ segments: z.array(z.string()) });
/** Where payloads can be copied to and read from: the depots of other nodes, those where the channel is consumed first. */
export const DepotsRequest = z.object({ channel: z.string() });
export const DepotsReply = z.array(
  z.object({ node: z.string(), addresses: z.array(z.string()), consumes: z.boolean() }),
);
export type DepotsReply = z.infer<typeof DepotsReply>;
/** Bytes of an item, to be kept in a segment of the depot's node; without one there is no memory for it. */
export const KeepRequest = z.object({ data: bytes });
export const KeepReply = z.object({ segment: z.string().optional() });
/** Answered with the bytes. */
export const ReadKeptRequest = z.object({ segment: z.string(), sizeBytes: z.int().nonnegative() });
export const ReadKeptReply = bytes;
/** `tags`: what of the worker the call needs loaded; all where there is none. */
export const LockRequest = z.object({ call: z.string(), tags: z.array(ReleasableTag).optional() });
export const LockReply = z.object({ token: z.int().positive() });
/** `numAnswered`: the puts and takes of the call that had been answered when its worker said so. */
export const LendMessage = z.object({ call: z.string(), numAnswered: z.int().nonnegative() });
export const UnlockRequest = z.object({ call: z.string(), token: z.int().positive() });
