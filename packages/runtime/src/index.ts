/** For those who write workflows and workers. Every worker process loads it: nothing of what runs them is in it. */

export {
  type EngineFacts,
  type HostFiles,
  type ModelWork,
  type ReleasableTag,
  type TagMemory,
  TreadleError,
} from "@treadle/contracts";
export type { PickFunction, PickItem, PickTake, PolicyName } from "@treadle/core";
export type { CreateTracker, Logger, OwnTracker, Tracer, TrackedEnd, TrackedRow } from "@treadle/observe";
export type {
  BatchOptions,
  Channel,
  ChannelOptions,
  InFlight,
  ItemBatchOptions,
  Sink,
  Source,
  StreamItem,
  WeightField,
} from "./author/channel/channel.ts";
export type { Cluster, LaunchOptions } from "./author/cluster.ts";
export type { DeviceLock, LockOptions } from "./author/device-lock.ts";
export type { GroupMethods, WorkerGroup } from "./author/group/group.ts";
export { CallHandle, type Reduction } from "./author/group/handle.ts";
export type { Messenger } from "./author/messages/messenger.ts";
export type { Rendezvous, RendezvousOptions } from "./author/messages/rendezvous.ts";
export type { RankSizer, RankSizes, RankSizing } from "./author/rank-sizer.ts";
export type { SavedFile, SelfWritten, StateData, StatePart, StateReader, StateWriter } from "./author/state/state.ts";
export {
  type Artifacts,
  type ConfigOf,
  type Predictors,
  type Sizing,
  Worker,
  type WorkerClass,
  type WorkerContext,
} from "./author/worker.ts";
export {
  type Carried,
  type Dataset,
  type Drawn,
  type Metrics,
  type Position,
  type Progress,
  type Step,
  type Unfinished,
  type Workflow,
  type WorkflowContext,
  workflow,
} from "./author/workflow.ts";
