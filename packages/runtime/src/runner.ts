/** For those who run workflows: runs, their folders, measuring and comparing, and node agents. */

export { type AcceleratorTool, acceleratorTools } from "./node/accelerators.ts";
export { numaNodes } from "./node/machine-facts.ts";
export { type Node, type NodeOptions, openNode } from "./node/node.ts";
export { nameTaken } from "./node/node-service.ts";
export { DevicePool, type DevicePoolOptions, type PoolLimits, type SharingOptions } from "./pool/device-pool.ts";
export { openPool, poolsAt } from "./pool/open-pool.ts";
export { openPoolLink } from "./pool/plane-pool-link.ts";
export { listPoolHistories, newPoolHistoryName, PoolHistoryFile } from "./pool/pool-history-file.ts";
export { PooledProcess } from "./pool/pooled-process.ts";
export { markThisProcess } from "./pool/run-process.ts";
export { slowdownPath } from "./pool/slowdown-file.ts";
export { PoolClient, type PoolLink } from "./runner/nodes/pool-client.ts";
export { keptProfiles, profilePath, readProfile, writeProfile } from "./runner/placement/profile-store.ts";
export { type CheckpointNote, Checkpoints, chooseCheckpoint, filesInCheckpoint } from "./runner/run/checkpoints.ts";
export {
  type ComparedPlan,
  type CompareOptions,
  type Comparison,
  compareModes,
  mostLateMs,
  predictAgain,
} from "./runner/run/compare.ts";
export { readConfigFile, validateConfig } from "./runner/run/config.ts";
export { Journal, type JournalRecord } from "./runner/run/journal.ts";
export { keptRuns } from "./runner/run/kept-run.ts";
export { loadFile, loadWorkflow } from "./runner/run/load-workflow.ts";
export { type MeasureOptions, profileWorkflow, traceWorkflow } from "./runner/run/measure.ts";
export type { RunOptions, RunResult } from "./runner/run/open-run.ts";
export {
  type ReplayedRecording,
  type ReplayedRun,
  type ReplayedState,
  type ReplayUntil,
  replayRun,
} from "./runner/run/replay-run.ts";
export { listRunIds, RunFolder } from "./runner/run/run-folder.ts";
export { resumeRun, runWorkflow, validateWorkflow } from "./runner/run/start-run.ts";
