import { setTimeout as sleep } from "node:timers/promises";
import type { Sink, Source } from "@treadle/runtime";
import { Worker } from "@treadle/runtime";
import type { Chunk } from "../items.ts";

type SleepConfig = { readonly itemMs: number };

/** A stage of a pipeline whose work is to sleep a known time an item. It holds its device meanwhile, as real ones do. */
class SleepWorker extends Worker<SleepConfig> {
  protected async pass(source: Source<Chunk>, sink: Sink<Chunk> | undefined): Promise<number> {
    await using _ = await this.devices.lock();
    let count = 0;
    for await (const batch of source.batches()) {
      await sleep(this.config.itemMs * batch.length);
      await sink?.put(...batch);
      count += batch.length;
    }
    return count;
  }
}

export class SleepRollout extends SleepWorker {
  static override readonly module = import.meta.url;
  async generate(prompts: Source<Chunk>, episodes: Sink<Chunk>): Promise<number> {
    return this.pass(prompts, episodes);
  }
}

export class SleepInference extends SleepWorker {
  static override readonly module = import.meta.url;
  async score(episodes: Source<Chunk>, scored: Sink<Chunk>): Promise<number> {
    return this.pass(episodes, scored);
  }
}

export class SleepActor extends SleepWorker {
  static override readonly module = import.meta.url;
  async train(scored: Source<Chunk>): Promise<number> {
    return this.pass(scored, undefined);
  }
}
