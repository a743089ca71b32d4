import { startView } from "./src/view/start-view.ts";
import { renderSummary } from "./src/view/summary.ts";
import { syntheticRun } from "./test/synthetic-run.ts";
const events = syntheticRun({ killedInStep: 30 });
const view = startView({ json: false, plain: process.argv[2] === "plain" });
const speed = Number(process.argv[3] ?? 20);
const shift = Date.now() - events[0]!.atMs;
let previous = events[0]!.atMs;
for (const e of events) {
  await new Promise((r) => setTimeout(r, (e.atMs - previous) / speed)); previous = e.atMs;
  view.onEvent({ ...e, atMs: e.atMs + shift });
}
view.close();
console.log(renderSummary(view.state(), { colour: process.stdout.isTTY }));
