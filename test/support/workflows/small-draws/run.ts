/** The emulated workflow, for which `draw.ts` draws a workload whose steps are short. */
export { Config, default, Item, StageWorker } from "../../../../workflows/emulated/run.ts";
