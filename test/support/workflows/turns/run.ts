/** A worker that holds the only device for a while in each step, and writes down when; between steps nobody needs it. */
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker, workflow } from "@treadle/runtime";
import { z } from "zod";

const Config = z.strictObject({
  name: z.string(),
  ledger: z.string(),
  holdMs: z.number().nonnegative(),
  idleMs: z.number().nonnegative(),
  /** a line of the ledger, which must be there before the second step */
  waitsFor: z.string(),
});

export class HolderWorker extends Worker<z.infer<typeof Config>> {
  async hold(step: number): Promise<void> {
    const { name, ledger, holdMs } = this.config;
    await using _ = await this.devices.lock();
    appendFileSync(ledger, `${name} begins ${step}\n`);
    await sleep(holdMs);
    appendFileSync(ledger, `${name} ends ${step}\n`);
  }
}

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { idleMs, waitsFor, ledger } = config;
  const holder = cluster.launch(HolderWorker, config);
  for await (const { index: step } of steps((step) => [{ id: `${step}` }])) {
    await holder.hold(step);
    await sleep(idleMs);
    while (!(existsSync(ledger) && readFileSync(ledger, "utf8").includes(waitsFor))) await sleep(20);
    report({ reward: step });
  }
});
