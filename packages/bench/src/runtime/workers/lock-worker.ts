import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "@treadle/runtime";
import { machineNowMs } from "../../row.ts";

/** When a worker was last loaded, granted its device, and gave it up; by the machine's clock. */
export type Held = { readonly loadedMs: number; readonly grantedMs: number; readonly releasedMs: number };

/** Holds its device for a moment and says when it had it. Its memory moves in no time: what remains is the runtime's. */
export class LockWorker extends Worker<{ readonly memoryMiB: number }> {
  static override readonly module = import.meta.url;
  #loadedMs = 0;

  override memoryBytes(): number {
    return this.config.memoryMiB * 2 ** 20;
  }

  override async onload(): Promise<void> {
    this.#loadedMs = machineNowMs();
  }

  async hold(holdMs: number): Promise<Held> {
    const lock = await this.devices.lock();
    const grantedMs = machineNowMs();
    await sleep(holdMs);
    const releasedMs = machineNowMs();
    await lock[Symbol.asyncDispose]();
    return { loadedMs: this.#loadedMs, grantedMs, releasedMs };
  }
}
