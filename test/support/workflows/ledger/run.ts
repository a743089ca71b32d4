/** Every task of the dataset is made once and trained once, whatever dies. */
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { workflow } from "@treadle/runtime";
import { z } from "zod";
import { MakerWorker, Result, Task, TrainerWorker } from "../../workers/ledger.ts";

const Config = z.strictObject({
  pauseMs: z.number(),
  payload: z.int(),
  ranks: z.int(),
  /** tasks that are done once, before the steps, in two halves */
  first: z.int(),
  /** a file that must be there before anything is called; another, with `.awaited` behind its name, says that it is awaited */
  beginsWith: z.string().optional(),
  devicesIn: z.string().optional(),
});

/** what the work before the steps reports */
export const firstAccuracy = 0.25;

export const tasksOf = (step: number, num: number): Task[] =>
  Array.from({ length: num }, (_, i) => ({ id: `step ${step} task ${String(i).padStart(2, "0")}` }));
export { MakerWorker, Result, Task, TrainerWorker };

export default workflow(Config, async ({ cluster, config, steps, report, once }) => {
  const own = { pauseMs: config.pauseMs, payload: config.payload, devicesIn: config.devicesIn };
  const options = { ranks: { fixed: config.ranks } };
  const maker = cluster.launch(MakerWorker, own, options);
  const trainer = cluster.launch(TrainerWorker, own, options);
  const tasks = cluster.channel("tasks", Task);
  const results = cluster.channel("results", Result);
  if (config.beginsWith !== undefined) {
    await writeFile(`${config.beginsWith}.awaited`, "");
    while (!existsSync(config.beginsWith)) await delay(20);
  }
  if (config.first > 0) {
    await once("first", async () => {
      const all = tasksOf(0, config.first);
      const middle = Math.ceil(all.length / 2);
      for (const half of [all.slice(0, middle), all.slice(middle)]) {
        maker.pull(trainer);
        await tasks.put(...half);
        maker.make(tasks.source, results.sink);
        await trainer.train(results.source, config.flow.maxStaleness);
      }
      report({ accuracy: firstAccuracy });
    });
  }
  for await (const { batch } of steps((step) => tasksOf(step, config.batch))) {
    maker.pull(trainer);
    await tasks.put(...batch);
    maker.make(tasks.source, results.sink);
    report(trainer.train(results.source, config.flow.maxStaleness));
  }
});
