/** For those who run workflows: runs, their folders, measuring and comparing, and node agents. */
export { numaNodes } from "./agent/machine-facts.ts";
export { type Node, type NodeOptions, openNode } from "./agent/node.ts";
export { nameTaken } from "./agent/node-service.ts";
export { type AcceleratorTool, acceleratorTools } from "./cluster/accelerators.ts";
export { Checkpoints } from "./run/checkpoints.ts";
export {
  type ComparedPlan,
  type CompareOptions,
  type Comparison,
  compareModes,
  mostLateMs,
} from "./run/compare.ts";
export { readConfigFile, validateConfig } from "./run/config.ts";
export { Journal, type JournalRecord } from "./run/journal.ts";
export { keptRuns } from "./run/kept-run.ts";
export { loadFile, loadWorkflow } from "./run/load-workflow.ts";
export { type MeasureOptions, profileWorkflow, traceWorkflow } from "./run/measure.ts";
export { profilePath, readProfile } from "./run/profile-store.ts";
export {
  type ReplayedRecording,
  type ReplayedRun,
  type ReplayedState,
  type ReplayUntil,
  replayRun,
} from "./run/replay-run.ts";
export type { RunOptions, RunResult } from "./run/run.ts";
export { listRunIds, RunFolder } from "./run/run-folder.ts";
export { resumeRun, runWorkflow, validateWorkflow } from "./run/start-run.ts";
