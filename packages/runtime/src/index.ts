/** For those who write workflows and workers. Every worker process loads it: nothing of what runs them is in it. */

export type { PickFunction, PickItem, PickTake, PolicyName } from "@treadle/core";
export type { Logger, Tracer } from "@treadle/observe";
export type { BatchOptions, Channel, ChannelOptions, Sink, Source } from "./channel/channel.ts";
export type { Cluster } from "./cluster/cluster.ts";
export type { LaunchOptions } from "./cluster/component.ts";
export type { DeviceLock } from "./device-lock/lock-client.ts";
export type { GroupMethods, WorkerGroup } from "./group/group.ts";
export { CallHandle, type Reduction } from "./group/handle.ts";
export type { Messenger } from "./host/messenger.ts";
export {
  type Dataset,
  type Metrics,
  type Step,
  type Workflow,
  type WorkflowContext,
  workflow,
} from "./run/workflow.ts";
export { type Artifacts, type ConfigOf, Worker, type WorkerClass, type WorkerContext } from "./worker.ts";
