export { chromiumIn, findChromium, openChromium } from "./chromium.ts";
export { writeSyntheticFolder } from "./synthetic-folder.ts";
export { startMs, syntheticRun } from "./synthetic-run.ts";
