/**
 * Rollout, tools and training that only take time, as long as a file says, and longer where others compute beside them; when all runs
 * are up, they begin together.
 */
import { appendFileSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { EmulatedEngine } from "@treadle/engines";
import { workflow } from "@treadle/runtime";
import { EngineWorker } from "@treadle/workers";
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
  /** that each run may use */
  devices: z.int().positive(),
  /** its devices are locked for whole steps, tools included */
  keepsForSteps: z.boolean(),
  /** by component, how many times as long it takes beside one of that name of another run */
  besides: z.record(z.string(), z.record(z.string(), z.number().positive())).default({}),
});

/** Of all that an engine does here, a unit takes a millisecond: a forward pass of a rollout, or a token of a training. */
const aMillisecond = { baseSeconds: 0.001, unitSeconds: 0 };
const contextLength = 10_000_000;
const sampling = { maxTokens: contextLength, temperature: 1, stopTokens: [], seed: 0 };

abstract class TimedWorker extends EngineWorker<z.infer<typeof Config>, EmulatedEngine> {
  #passes = 0;

  override async setup(): Promise<void> {
    const beside = this.config.besides[this.component] ?? {};
    const training = { baseSeconds: 0, unitSeconds: 0.001 };
    this.engine = EmulatedEngine.create(
      { decode: aMillisecond, training, contextLength, beside },
      { loaded: false, turnTokens: () => this.#passes },
    );
  }

  /** Its process is up. */
  async ready(): Promise<void> {}

  protected async generate(passes: number): Promise<void> {
    this.#passes = Math.max(1, Math.round(passes));
    await this.engine.generate([new Int32Array(1)], sampling);
  }
}

export class RolloutWorker extends TimedWorker {
  async rollout(lengthsMs: readonly number[]): Promise<void> {
    await using _ = await this.devices.lock();
    await this.generate(lengthsMs[this.rank] as number);
  }
}

export class TrainWorker extends TimedWorker {
  async train(lengthMs: number): Promise<void> {
    await using _ = await this.devices.lock();
    const rows = Math.round(lengthMs);
    if (rows > 0) await this.engine.forwardBackward(batchOf(rows), { type: "cross-entropy" });
  }
}

const batchOf = (rows: number) => ({ rows, columns: 1, tokens: new Int32Array(rows), weights: new Float32Array(rows) });

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { name, stages, ledger, runs, keepsForSteps } = config;
  const lengths = z.array(Stage).parse(JSON.parse(readFileSync(stages, "utf8")));
  const note = (what: string) => appendFileSync(ledger, `${name} ${what} ${Number(process.hrtime.bigint()) / 1e6}\n`);
  const rollout = cluster.launch(RolloutWorker, config, { name: "rollout" });
  const train = cluster.launch(TrainWorker, config, { name: "train", devicesPerRank: config.devices });
  let isReady = false;
  for await (const { index: step } of steps((step) => [{ id: `${step}` }])) {
    if (!isReady) {
      await Promise.all([rollout.ready(), train.ready()]); // nothing is measured of them before they begin
      note("ready");
      while (readFileSync(ledger, "utf8").split(" ready ").length <= runs) await sleep(20);
      note("begins");
      isReady = true;
    }
    const { rolloutMs, toolsMs, trainMs } = lengths[(step - 1) % lengths.length] as z.infer<typeof Stage>;
    if (keepsForSteps) await train.train(Math.max(...rolloutMs) + toolsMs + trainMs);
    else {
      await rollout.rollout(rolloutMs);
      await sleep(toolsMs);
      await train.train(trainMs);
    }
    note("ends");
    report({ reward: step });
  }
});
