import type { EpisodeGroup } from "@treadle/contracts";
import type { GenerationEngine, TrainingEngine } from "@treadle/engines";
import { packForScoring, unpackEntries } from "@treadle/learning";
import type { Sink, Source, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import type { ActorWorker } from "../actor/actor-worker.ts";
import { createEngine, EngineConfig } from "../engine.ts";
import { EngineWorker } from "../engine-worker.ts";
import { pullWeights } from "../weights.ts";

export const InferenceConfig = EngineConfig.extend({
  paddingToken: z.int().nonnegative().default(0),
});
export type InferenceConfig = z.infer<typeof InferenceConfig>;

/** Scores existing tokens: the log-probabilities that the training step compares with. */
export class InferenceWorker extends EngineWorker<InferenceConfig, GenerationEngine & TrainingEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly replays = ["pullWeights"];

  override async setup(): Promise<void> {
    this.engine = await createEngine(this.config, this.devices.ids.length, this.seed + this.rank);
  }

  async pullWeights(actor: WorkerGroup<ActorWorker>): Promise<void> {
    await using _ = await this.devices.lock();
    await pullWeights(this.engine, actor, this.rank);
  }

  /** Fills in `oldLogprobs` of every episode. */
  async score(groups: Source<EpisodeGroup>, scored: Sink<EpisodeGroup>): Promise<{ tokens: number }> {
    await using _ = await this.devices.lock();
    let tokens = 0;
    for await (const batch of groups.batches()) {
      const episodes = batch.flatMap((group) => group.episodes);
      const packed = packForScoring(episodes, {
        columns: this.config.model.contextLength,
        maxRows: this.config.model.microBatchRows,
        paddingToken: this.config.paddingToken,
      });
      const rectangles: Float32Array[] = [];
      {
        using _forward = this.timer("forward");
        for (const { batch: rows } of packed) rectangles.push(await this.engine.logprobs(rows));
      }
      const logprobs = unpackEntries(packed, rectangles, episodes.length);
      let next = 0;
      const filled = batch.map((group) => ({
        promptId: group.promptId,
        episodes: group.episodes.map((episode) => ({ ...episode, oldLogprobs: logprobs[next++] as Float32Array })),
      }));
      for (const episode of episodes) tokens += episode.tokens.length;
      await scored.put(...filled);
    }
    return { tokens };
  }
}
