/** For those who write workflows and workers. Every worker process loads it: nothing of what runs them is in it. */
export type { BatchOptions, Channel, ChannelOptions, Sink, Source } from "./channel/channel.ts";
export type { Cluster } from "./cluster/cluster.ts";
export type { LaunchOptions } from "./cluster/component.ts";
export type { GroupMethods, WorkerGroup } from "./group/group.ts";
export { CallHandle, type Reduction } from "./group/handle.ts";
export {
  type Dataset,
  type Metrics,
  type Step,
  type Workflow,
  type WorkflowContext,
  workflow,
} from "./run/workflow.ts";
export { type ConfigOf, Worker, type WorkerClass, type WorkerContext } from "./worker.ts";
