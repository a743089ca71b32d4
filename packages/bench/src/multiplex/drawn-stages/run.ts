/** Rollout, tools and training that only sleep, for as long as a file says; when all runs are up, they begin together. */
import { appendFileSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker, workflow } from "@treadle/runtime";
import { z } from "zod";

const milliseconds = z.number().nonnegative();
const Stage = z.strictObject({ rolloutMs: z.array(milliseconds), toolsMs: milliseconds, trainMs: milliseconds });

const Config = z.strictObject({
  name: z.string(),
  /** a file: what the stages of each step take */
  stages: z.string(),
  /** a file, with a line whenever a run is ready, begins or ends */
  ledger: z.string(),
  /** that begin together */
  runs: z.int().positive(),
  /** its devices are locked for whole steps, tools included */
  keepsForSteps: z.boolean(),
});

export class StageWorker extends Worker<z.infer<typeof Config>> {
  async rollout(lengthsMs: readonly number[]): Promise<void> {
    await using _ = await this.devices.lock();
    await sleep(lengthsMs[this.rank]);
  }

  async train(lengthMs: number): Promise<void> {
    await using _ = await this.devices.lock();
    await sleep(lengthMs);
  }
}

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { name, stages, ledger, runs, keepsForSteps } = config;
  const lengths = z.array(Stage).parse(JSON.parse(readFileSync(stages, "utf8")));
  const note = (what: string) => appendFileSync(ledger, `${name} ${what} ${Number(process.hrtime.bigint()) / 1e6}\n`);
  const worker = cluster.launch(StageWorker, config);
  let isReady = false;
  for await (const { index: step } of steps((step) => [{ id: `${step}` }])) {
    if (!isReady) {
      await worker.train(0);
      note("ready");
      while (readFileSync(ledger, "utf8").split(" ready ").length <= runs) await sleep(20);
      note("begins");
      isReady = true;
    }
    const { rolloutMs, toolsMs, trainMs } = lengths[(step - 1) % lengths.length] as z.infer<typeof Stage>;
    if (keepsForSteps) await worker.train(Math.max(...rolloutMs) + toolsMs + trainMs);
    else {
      await worker.rollout(rolloutMs);
      await sleep(toolsMs);
      await worker.train(trainMs);
    }
    note("ends");
    report({ reward: step });
  }
});
