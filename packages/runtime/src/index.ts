export { numaNodes } from "./agent/machine-facts.ts";
export { type Node, type NodeOptions, openNode } from "./agent/node.ts";
export type { BatchOptions, Channel, ChannelOptions, Sink, Source } from "./channel/channel.ts";
export { type AcceleratorTool, acceleratorTools } from "./cluster/accelerators.ts";
export type { Cluster } from "./cluster/cluster.ts";
export type { LaunchOptions } from "./cluster/component.ts";
export type { GroupMethods, WorkerGroup } from "./group/group.ts";
export { CallHandle, type Reduction } from "./group/handle.ts";
export { Checkpoints } from "./run/checkpoints.ts";
export { type ComparedPlan, type CompareOptions, type Comparison, compareModes } from "./run/compare.ts";
export { readConfigFile, validateConfig } from "./run/config.ts";
export { Journal, type JournalRecord } from "./run/journal.ts";
export { keptRuns } from "./run/kept-run.ts";
export { type MeasureOptions, profileWorkflow, traceWorkflow } from "./run/measure.ts";
export { profilePath, readProfile } from "./run/profile-store.ts";
export type { RunOptions, RunResult } from "./run/run.ts";
export { listRunIds, RunFolder } from "./run/run-folder.ts";
export { resumeRun, runWorkflow, validateWorkflow } from "./run/start-run.ts";
export {
  type Dataset,
  loadWorkflow,
  type Metrics,
  type Step,
  type Workflow,
  type WorkflowContext,
  workflow,
} from "./run/workflow.ts";
export { type ConfigOf, Worker, type WorkerClass, type WorkerContext } from "./worker.ts";
