/**
 * Everything that two processes of a run say to each other, verb by verb: who asks, who answers, what is asked and what is
 * answered. PROTOCOL.md lists the same.
 *
 * `Peer.request` and `Peer.handle`, `ask` and `answering`, `publishTo` and `listenTo` infer from these maps, and parse at
 * their edge: whoever acts on a body or an answer has it from a schema. Parsing copies the fields of the body itself; what
 * is opaque on the way (arguments, values, blocks of items) passes untouched.
 */
import { z } from "zod";
import {
  CheckReply,
  EndCommand,
  EndReply,
  ExitedCommand,
  FilesCommand,
  FilesReply,
  HeartbeatsEvent,
  LogEvent,
  ReadRunFile,
  ReleaseCommand,
  RunFilePart,
  RunStatus,
  SpawnCommand,
  SpawnReply,
  StopCommand,
} from "./control.ts";
import { BesideMessage, PoolStatus, PoolTalk, PoolTold, WorkDone } from "./device-pool.ts";
import {
  AwaitsMessage,
  CallReply,
  CallRequest,
  CommitRequest,
  Configuration,
  DepotsReply,
  DepotsRequest,
  GiveUpMessage,
  isPlainReply,
  KeepReply,
  KeepRequest,
  KeptPredictor,
  LendMessage,
  LockReply,
  LockRequest,
  MessageEnvelope,
  NodesReply,
  NodesRequest,
  OffloadReply,
  OpenStateReply,
  PeerDiedMessage,
  PutRequest,
  ReachableMessage,
  ReadKeptReply,
  ReadKeptRequest,
  ReadStateReply,
  ReadStateRequest,
  ReadyMessage,
  ResizeMessage,
  ResolveReply,
  ResolveRequest,
  SavedStateMessage,
  SegmentsMessage,
  SizingReport,
  SwapRequest,
  TakeReply,
  TakeRequest,
  UnlockRequest,
  WaitsReply,
  WorkerMemory,
  WriteArtifactRequest,
  WritePredictorRequest,
  WriteStateRequest,
} from "./messages.ts";
import type { MemberKind } from "./ports.ts";
import { SpanBatch } from "./span-record.ts";

type Process = "runner" | "worker" | "depot" | "node agent" | "command line" | "pool";

/** One thing that may be said over a link. */
export type Verb = {
  readonly from: readonly Process[];
  readonly to: Process;
  readonly means: string;
  readonly request: z.ZodType;
  /** absent: a notification, for whose effect nobody waits */
  readonly reply?: z.ZodType;
  /** A reply for which it holds is well formed at a look: for calls, whose schema costs as much as the way there. */
  readonly isPlainReply?: (reply: unknown) => boolean;
};

/** What may be said over links of one kind. */
export type Protocol = Readonly<Record<string, Pick<Verb, "request" | "reply" | "isPlainReply">>>;

const empty = z.object({});
const done = z.void();

/** Between the processes of a run, over links. */
export const runProtocol = {
  call: {
    from: ["runner", "worker"],
    to: "worker",
    means: "run a method; the request's cancellation cancels the call",
    request: CallRequest,
    reply: CallReply,
    isPlainReply,
  },
  message: {
    from: ["worker"],
    to: "worker",
    means:
      "`send`, `broadcast` and the other collectives; answered when the receiver has room, and all to whom it passes it on",
    request: MessageEnvelope,
    reply: done,
  },
  waits: {
    from: ["worker"],
    to: "worker",
    means: "for whom do you wait? asked by one that has waited for you too long",
    request: empty,
    reply: WaitsReply,
  },
  onload: {
    from: ["runner"],
    to: "worker",
    means: "take memory on the devices; a grant of the device lock waits for it",
    request: SwapRequest,
    reply: WorkerMemory,
  },
  offload: {
    from: ["runner"],
    to: "worker",
    means: "give the memory of the devices back, which another one needs; what stays there counts for the next grant",
    request: SwapRequest,
    reply: OffloadReply,
  },
  resize: {
    from: ["runner"],
    to: "worker",
    means: "the group has grown or shrunk between two steps",
    request: ResizeMessage,
    reply: done,
  },
  stop: {
    from: ["runner"],
    to: "worker",
    means: "tear down and end",
    request: empty,
    reply: done,
  },
  "peer-died": {
    from: ["runner"],
    to: "worker",
    means: "another worker died: nothing of it is waited for any more",
    request: PeerDiedMessage,
  },
  "give-up": {
    from: ["runner"],
    to: "worker",
    means: "a call that failed because of a peer is not made again: the calls behind it go on",
    request: GiveUpMessage,
  },
  beside: {
    from: ["runner"],
    to: "worker",
    means:
      "what computes on its devices in other runs, from here on; the first one asks it to say what it computes itself",
    request: BesideMessage,
  },
  "segments.reuse": {
    from: ["runner"],
    to: "worker",
    means: "segments that the worker wrote are free to be written again",
    request: SegmentsMessage,
  },
  configuration: {
    from: ["worker"],
    to: "runner",
    means: "the first question: the component's configuration, and its saved state",
    request: empty,
    reply: Configuration,
  },
  reachable: {
    from: ["worker"],
    to: "runner",
    means: "listening, about to be set up: it takes messages, and no calls yet",
    request: ReachableMessage,
    reply: done,
  },
  awaits: {
    from: ["worker"],
    to: "runner",
    means: "the messages of others that it has been waiting for, each time that these change",
    request: AwaitsMessage,
  },
  ready: {
    from: ["worker"],
    to: "runner",
    means: "set up; loaded, too, unless its class loads under the device lock",
    request: ReadyMessage,
    reply: done,
  },
  resolve: {
    from: ["worker"],
    to: "runner",
    means: "where another worker listens",
    request: ResolveRequest,
    reply: ResolveReply,
  },
  nodes: {
    from: ["worker"],
    to: "runner",
    means: "on which nodes are these workers? a broadcast enters each of them once",
    request: NodesRequest,
    reply: NodesReply,
  },
  "channel.put": {
    from: ["worker"],
    to: "runner",
    means: "items into a channel; answered when there is credit for them",
    request: PutRequest,
    reply: done,
  },
  "channel.take": {
    from: ["worker"],
    to: "runner",
    means: "a batch out of a channel; answered when there is one",
    request: TakeRequest,
    reply: TakeReply,
  },
  "channel.commit": {
    from: ["worker"],
    to: "runner",
    means: "items of a take are done, and what was made of them is put; answered when there is credit for that",
    request: CommitRequest,
    reply: done,
  },
  "segments.read": {
    from: ["worker"],
    to: "runner",
    means: "the memory of large items that it took is out of its reach",
    request: SegmentsMessage,
  },
  depots: {
    from: ["worker"],
    to: "runner",
    means: "where large items of a channel can be kept and read on other nodes",
    request: DepotsRequest,
    reply: DepotsReply,
  },
  "lock.acquire": {
    from: ["worker"],
    to: "runner",
    means: "the devices of the rank; answered with the fencing token of the grant",
    request: LockRequest,
    reply: LockReply,
  },
  "lock.lend": {
    from: ["worker"],
    to: "runner",
    means: "its engine is idle: the call lends its devices while it waits",
    request: LendMessage,
  },
  "lock.release": {
    from: ["worker"],
    to: "runner",
    means: "the end of a grant",
    request: UnlockRequest,
    reply: done,
  },
  worked: {
    from: ["worker"],
    to: "runner",
    means: "what it has computed on its devices, at each end of its turn and whenever others begin or end there",
    request: WorkDone,
  },
  "state.saved": {
    from: ["worker"],
    to: "runner",
    means: "the files that a call has saved after its reply, or why it could not",
    request: SavedStateMessage,
    reply: done,
  },
  "state.write": {
    from: ["worker"],
    to: "runner",
    means: "a piece of a state, from a worker that does not see the run's folder",
    request: WriteStateRequest,
    reply: done,
  },
  "state.open": {
    from: ["worker"],
    to: "runner",
    means: "the manifest of its saved state, of a worker that does not see the run's folder",
    request: empty,
    reply: OpenStateReply,
  },
  "state.read": {
    from: ["worker"],
    to: "runner",
    means: "a piece of a file that the manifest names",
    request: ReadStateRequest,
    reply: ReadStateReply,
  },
  "artifact.write": {
    from: ["worker"],
    to: "runner",
    means: "a file for people to look at",
    request: WriteArtifactRequest,
    reply: done,
  },
  "predictor.read": {
    from: ["worker"],
    to: "runner",
    means: "what this rank, or the first one, learned to predict in earlier runs",
    request: empty,
    reply: KeptPredictor.nullable(),
  },
  "predictor.write": {
    from: ["worker"],
    to: "runner",
    means: "what this rank has learned to predict, for later runs",
    request: WritePredictorRequest,
    reply: done,
  },
  "sizing.report": {
    from: ["worker"],
    to: "runner",
    means: "what this rank saw of a step, by which the ranks of its group are sized",
    request: SizingReport,
    reply: done,
  },
  telemetry: {
    from: ["worker"],
    to: "runner",
    means: "spans and counters since the last batch",
    request: SpanBatch,
  },
  "payload.keep": {
    from: ["worker"],
    to: "depot",
    means: "keep a copy of an item on this node",
    request: KeepRequest,
    reply: KeepReply,
  },
  "payload.read": {
    from: ["worker", "runner"],
    to: "depot",
    means: "the bytes of an item that lies on this node",
    request: ReadKeptRequest,
    reply: ReadKeptReply,
  },
  "payload.free": {
    from: ["runner"],
    to: "depot",
    means: "items that nobody will ask for any more",
    request: SegmentsMessage,
  },
} as const satisfies Record<string, Verb>;
export type RunProtocol = typeof runProtocol;

/** A command was carried out, which is all that there is to say. */
export const acknowledged = z.null();

/** Commands over the control plane, which carries JSON, by who answers them: the kind of the member. */
export const commands = {
  node: {
    ping: {
      from: ["runner"],
      to: "node agent",
      means: "whether the agent is there, asked when something of it has ended without a word",
      request: empty,
      reply: acknowledged,
    },
    check: {
      from: ["runner"],
      to: "node agent",
      means: "the code that the agent would run",
      request: empty,
      reply: CheckReply,
    },
    files: {
      from: ["runner"],
      to: "node agent",
      means: "the files of that code by their hashes, a page after a path, to name those that differ",
      request: FilesCommand,
      reply: FilesReply,
    },
    spawn: {
      from: ["runner"],
      to: "node agent",
      means: "start a worker's process; asked twice, it is done once",
      request: SpawnCommand,
      reply: SpawnReply,
    },
    end: {
      from: ["runner"],
      to: "node agent",
      means: "end a process at once",
      request: EndCommand,
      reply: EndReply,
    },
    stop: {
      from: ["runner"],
      to: "node agent",
      means: "wait for a process's orderly end, then end it",
      request: StopCommand,
      reply: EndReply,
    },
    release: {
      from: ["runner"],
      to: "node agent",
      means: "end every process of a run; answered when they are gone",
      request: ReleaseCommand,
      reply: acknowledged,
    },
  },
  run: {
    exited: {
      from: ["node agent"],
      to: "runner",
      means: "a worker's process has ended",
      request: ExitedCommand,
      reply: acknowledged,
    },
    status: {
      from: ["command line"],
      to: "runner",
      means: "how the run goes, and who waits for whom",
      request: empty,
      reply: RunStatus,
    },
    read: {
      from: ["command line"],
      to: "runner",
      means: "what a file of the run's folder has more by now, for a dashboard on another machine",
      request: ReadRunFile,
      reply: RunFilePart,
    },
    stop: {
      from: ["command line"],
      to: "runner",
      means: "end the run after the step under way",
      request: empty,
      reply: acknowledged,
    },
  },
  pool: {
    talk: {
      from: ["runner"],
      to: "pool",
      means: "what a run says to the pool whose devices it shares, and is told in turn; a sign of life, too",
      request: PoolTalk,
      reply: PoolTold,
    },
    status: {
      from: ["command line"],
      to: "pool",
      means: "which run has which devices, and which waits for which",
      request: empty,
      reply: PoolStatus,
    },
  },
} as const satisfies Record<MemberKind, Record<string, Verb>>;
export type Commands = typeof commands;

/** Events of one run, on topics such as `log.<run>`: at most once, to whoever listens. */
export const topics = {
  heartbeats: {
    from: ["node agent"],
    to: "runner",
    means: "every worker of the run on a node is there, once a second",
    request: HeartbeatsEvent,
  },
  log: { from: ["node agent"], to: "runner", means: "lines that workers wrote", request: LogEvent },
} as const satisfies Record<string, Verb>;
export type Topics = typeof topics;

type Replying<P> = { [V in keyof P]: P[V] extends { readonly reply: z.ZodType } ? V : never }[keyof P];
/** The verbs that are answered. */
export type AskVerb<P extends Protocol> = Replying<P> & string;
/** The verbs that are only told. */
export type TellVerb<P extends Protocol> = Exclude<keyof P, Replying<P>> & string;
/** What is given to whoever says the verb. */
export type RequestOf<P extends Protocol, V extends keyof P> = z.input<P[V]["request"]>;
/** What whoever answers gets. */
export type BodyOf<P extends Protocol, V extends keyof P> = z.output<P[V]["request"]>;
/** What whoever answers gives. */
export type AnswerOf<P extends Protocol, V extends keyof P> = P[V] extends { readonly reply: infer R extends z.ZodType }
  ? z.input<R>
  : unknown;
/** What whoever asked gets. */
export type ReplyOf<P extends Protocol, V extends keyof P> = P[V] extends { readonly reply: infer R extends z.ZodType }
  ? z.output<R>
  : never;
