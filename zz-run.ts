import { mkdtemp } from "node:fs/promises";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
const [mode, proc, ...more] = process.argv.slice(2);
const runsRoot = await mkdtemp("/tmp/treadle-zz-");
const workflow = join(process.cwd(), "workflows/reasoning-grpo");
let most = 0;
const count = () => {
  const n = execFileSync("sh", ["-c", "ps -eo args | grep -c '[m] treadle_torch' || true"]).toString().trim();
  most = Math.max(most, Number(n));
};
const timer = setInterval(count, 500);
const began = Date.now();
const { summary } = await runWorkflow({
  workflow, configFile: join(workflow, "torch.yaml"), projectRoot: process.cwd(), runsRoot,
  overrides: ["steps=4", "trace=false", `placement.mode=${mode}`, `engine.process=${proc}`, "imitation.maxRounds=2", "imitation.updates=5", "evaluation.everySteps=2", ...more],
  onEvent: (e) => { if (process.env.V) console.log(JSON.stringify(e).slice(0, 300)); },
});
clearInterval(timer);
console.log(mode, proc, (Date.now() - began) / 1000, "most processes", most, JSON.stringify(summary).slice(0, 1500));
