/** A worker that needs no device, and one that forgets that it has none. */
import { type Sink, type Source, Worker } from "@treadle/runtime";

export class JudgeWorker extends Worker {
  static override readonly module: string = import.meta.url;

  async judge(source: Source<number>, sink: Sink<number>): Promise<{ devices: readonly string[]; seen: number }> {
    let seen = 0;
    for await (const batch of source.batches({ items: 1 })) {
      seen += batch.length;
      await sink.put(...batch.map((item) => item * 2));
    }
    return { devices: this.devices.ids, seen };
  }

  async lockAnyway(): Promise<void> {
    await using _ = await this.devices.lock();
  }
}
