/** Stages whose work is to sleep a known time an item, holding their devices meanwhile. */
import { setTimeout as sleep } from "node:timers/promises";
import { type Sink, type Source, Worker } from "@treadle/runtime";
import { z } from "zod";

export const Piece = z.object({ id: z.number() });
export type Piece = z.infer<typeof Piece>;

export class SleepingWorker extends Worker<{ readonly itemMs: number }> {
  static override readonly module: string = import.meta.url;

  async pass(source: Source<Piece>, sinks: readonly Sink<Piece>[]): Promise<number> {
    await using _ = await this.devices.lock();
    let count = 0;
    for await (const batch of source.batches()) {
      await sleep(this.config.itemMs * batch.length);
      for (const sink of sinks) await sink.put(...batch);
      count += batch.length;
    }
    return count;
  }
}
