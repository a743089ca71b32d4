/** A pipeline that keeps a ledger: whatever was trained is in the trainer's state, with the version it was made by. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { type Sink, type Source, type StateReader, type StateWriter, Worker, type WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import { computing } from "./exclusive-devices.ts";

export const Task = z.object({ id: z.string() });
export type Task = z.infer<typeof Task>;
export const Result = z.object({ id: z.string(), version: z.int(), payload: z.instanceof(Float32Array) });
export type Result = z.infer<typeof Result>;
/** `devicesIn`: a folder where who computes on a device says so, and finds nobody else (`exclusive-devices.ts`) */
export type LedgerConfig = {
  readonly pauseMs: number;
  readonly payload: number;
  readonly devicesIn?: string | undefined;
};

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));
const Ledger = z.object({ version: z.int(), trained: z.array(z.string()) });

export class MakerWorker extends Worker<LedgerConfig> {
  static override readonly module: string = import.meta.url;
  static override readonly replays = ["pull"];
  static override readonly resizes = true;
  #version = -1;
  #lastSize = 0;

  override memoryBytes(): number {
    return 60 * 2 ** 20;
  }

  async pull(trainer: WorkerGroup<TrainerWorker>): Promise<void> {
    this.#version = await trainer
      .onRanks(this.rank % trainer.size)
      .currentVersion()
      .first();
  }

  async make(tasks: Source<Task>, results: Sink<Result>): Promise<number> {
    await using _ = await this.devices.lock();
    if (this.worldSize !== this.#lastSize) this.log.warn(`one of ${this.worldSize}`);
    this.#lastSize = this.worldSize;
    let num = 0;
    for await (const batch of tasks.batches()) {
      await computing(this.devices.ids, this.config.devicesIn, () => pause(this.config.pauseMs));
      for (const { id } of batch) {
        const payload = new Float32Array(this.config.payload).fill(id.length);
        await results.put({ id, version: this.#version, payload });
        num++;
      }
    }
    return num;
  }
}

/** Its ranks hold one state together: every rank knows what all of them trained. */
export class TrainerWorker extends Worker<LedgerConfig> {
  static override readonly module: string = import.meta.url;
  static override readonly restart = "group";
  static override readonly saves = ["train"];
  #ledger: z.infer<typeof Ledger> = { version: 0, trained: [] };

  /** Leaves a folder for others of its host, as engines do with their weights. */
  override async setup(): Promise<void> {
    const { hostFiles } = this;
    if (hostFiles) await mkdir(join(hostFiles.folder, `${hostFiles.ownPrefix}folder`, "inner"), { recursive: true });
  }

  override memoryBytes(): number {
    return 60 * 2 ** 20;
  }

  async currentVersion(): Promise<number> {
    return this.#ledger.version;
  }

  async train(results: Source<Result>, maxStaleness: number): Promise<{ items: number; policyVersion: number }> {
    await using _ = await this.devices.lock();
    const { version, trained } = this.#ledger;
    const mine: string[] = [];
    for await (const batch of results.batches({ acknowledge: "call" })) {
      for (const result of batch) {
        if (result.version < version - maxStaleness || result.version > version) {
          throw new Error(`'${result.id}' was made by version ${result.version}, and version ${version} trains it`);
        }
        if (result.payload.some((value) => value !== result.id.length)) throw new Error(`'${result.id}' is damaged`);
        mine.push(result.id);
      }
      await computing(this.devices.ids, this.config.devicesIn, () => pause(this.config.pauseMs));
    }
    const all = await this.messages.broadcast((await this.messages.gather(mine))?.flat());
    this.#ledger = { version: version + 1, trained: [...trained, ...(all as string[]).toSorted()] };
    return { items: mine.length, policyVersion: version + 1 };
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    state.write("ledger", JSON.stringify(this.#ledger));
  }
  override async restore(state: StateReader): Promise<void> {
    this.#ledger = Ledger.parse(JSON.parse(await state.text("ledger")));
  }
}
