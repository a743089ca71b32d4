import { setTimeout as sleep } from "node:timers/promises";
import type { Sink, Source } from "@treadle/runtime";
import { Worker } from "@treadle/runtime";
import type { Chunk } from "../items.ts";

type TrajectoryConfig = { readonly turns: number; readonly turnMs: number };

/** Has many trajectories under way at once, each of which waits for its next turn; none computes anything. */
export class TrajectoryWorker extends Worker<TrajectoryConfig> {
  static override readonly module = import.meta.url;

  /** Takes whatever there is, up to its share, and puts each trajectory as it ends. */
  async generate(prompts: Source<Chunk>, episodes: Sink<Chunk>, share: number): Promise<number> {
    const { turns, turnMs } = this.config;
    const underWay: Promise<void>[] = [];
    for await (const batch of prompts.batches({ items: share })) {
      for (const prompt of batch) underWay.push(this.#walk(prompt, episodes, turns, turnMs));
    }
    await Promise.all(underWay);
    return underWay.length;
  }

  async #walk(prompt: Chunk, episodes: Sink<Chunk>, turns: number, turnMs: number): Promise<void> {
    // Spread, so that they do not end all at once.
    for (let turn = 0; turn < turns; turn++) await sleep(turnMs * (0.5 + ((prompt.id * 0.618 + turn * 0.37) % 1)));
    await episodes.put(prompt);
  }
}
