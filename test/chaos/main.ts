/**
 * `npm run chaos -- --minutes 30 --seed N [--workflow embedded | ledger | reasoning-grpo | tool-agent | embodied-ppo]`: random kills, suspensions and partitions of a run over
 * three node agents and three NATS servers; with `--pool`, of two runs of the ledger that share this machine's devices. The seed draws what is struck and for how long; when it hits is up to the
 * machine. Ends with 1 when something was lost, came twice, stuck or stayed, when a runner gave up, and on a quiet machine when
 * recoveries or pauses took longer than is wanted.
 */
import { spawnSync } from "node:child_process";
import { availableParallelism, loadavg } from "node:os";
import { parseArgs } from "node:util";
import { median } from "@treadle/contracts";
import { z } from "zod";
import { chaos, type OpenStruck } from "./chaos.ts";
import { ChaosCluster, type Subject, subjects } from "./chaos-cluster.ts";
import { SharedMachine } from "./shared-machine.ts";
import { verdictOn } from "./verdict.ts";

const { values } = parseArgs({
  options: {
    minutes: { type: "string", default: "30" },
    seed: { type: "string" },
    workflow: { type: "string" },
    pool: { type: "boolean", default: false },
  },
});
if (values.pool && values.workflow !== undefined) {
  console.error("--pool strikes runs of the ledger; leave --workflow out");
  process.exit(2);
}
const workflow = z.enum(Object.keys(subjects) as [Subject, ...Subject[]]).parse(values.workflow ?? "embedded");
const seed = Number(values.seed ?? Date.now() % 1e6);
const minutes = Number(values.minutes);
/** In so many minutes everything is drawn that can be. */
const longMinutes = 15;
const beganMs = performance.now();
const log = (text: string) => {
  const seconds = Math.round((performance.now() - beganMs) / 1000);
  console.error(`${String(Math.floor(seconds / 60)).padStart(2)}:${String(seconds % 60).padStart(2, "0")}  ${text}`);
};
const what = values.pool ? "--pool" : `--workflow ${workflow}`;
console.error(`chaos for ${minutes} minutes, --seed ${seed}, ${what}`);
const interrupted = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => interrupted.abort(new Error("interrupted; what was started is ended")));
}
const loadBefore = loadavg()[0] as number;
/** What recoveries of machines are compared by: most of one is starting processes. */
const nodeStartMs = median(
  Array.from({ length: 9 }, () => {
    const fromMs = performance.now();
    spawnSync(process.execPath, ["-e", "0"]);
    return performance.now() - fromMs;
  }),
);
console.error(`a Node that does nothing starts and ends in ${nodeStartMs.toFixed(0)} ms here`);
try {
  const open: OpenStruck = values.pool ? SharedMachine.open : ChaosCluster.opens(workflow);
  const report = await chaos({ minutes, seed, open, log, signal: interrupted.signal });
  console.log(JSON.stringify(report, undefined, 2));
  if (report.gaveUp.length > 0)
    throw new Error(`the run was ended, and had to be resumed: ${report.gaveUp.join("; ")}`);
  const never = Object.entries(report.strikes).flatMap(([kind, times]) => (times === 0 ? [kind] : []));
  if (minutes >= longMinutes && never.length > 0)
    throw new Error(`it was not struck by ${never.join(", ")}, so it proves nothing of them; take another seed`);
  console.error(`${report.prompts} prompts were put, and each was trained once; nothing is left`);
  const verdict = verdictOn({ ...report, loadBefore, processors: availableParallelism() });
  console.error(verdict.text);
  process.exit(verdict.type === "exceeded" ? 1 : 0);
} catch (error) {
  console.error(`--seed ${seed}:`, error);
  process.exit(1);
}
