/** The emulated workflow, for which `draw.ts` draws what no plan fits. */
export { Config, default, Item, StageWorker } from "../../../../workflows/emulated/run.ts";
