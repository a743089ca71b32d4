import type { EpisodeGroup, Prompt } from "@treadle/contracts";
import type { GenerateOptions } from "@treadle/engines";
import { hashString } from "@treadle/learning";
import type { Sink, Source } from "@treadle/runtime";
import { RolloutWorker, toEpisode } from "@treadle/workers";

/** The shipped rollout worker, with two other ways to do its work. */
export class ComparedRollout extends RolloutWorker {
  static override readonly module = import.meta.url;

  /** Chunk by chunk: nothing begins before all of the chunk before has ended. Returns tokens. */
  async drain(prompts: Source<Prompt>, groups: Sink<EpisodeGroup>): Promise<number> {
    await using _ = await this.devices.lock();
    const { groupSize } = this.config;
    let tokens = 0;
    for await (const batch of prompts.batches()) {
      const rows = this.#rowsOf(batch);
      const completions = await this.#complete(rows);
      const episodes = completions.map((completion, index) =>
        toEpisode(this.engine.kind, rows[index] as Prompt, completion, 0),
      );
      for (const completion of completions) tokens += completion.tokens.length;
      await groups.put(
        ...batch.map(({ id }, at) => ({
          promptId: id,
          episodes: episodes.slice(at * groupSize, (at + 1) * groupSize),
        })),
      );
    }
    return tokens;
  }

  /** One call of the engine with an even share of the prompts, without a channel. Returns tokens. */
  async direct(prompts: readonly Prompt[]): Promise<number> {
    await using _ = await this.devices.lock();
    const completions = await this.#complete(
      this.#rowsOf(prompts.filter((_, index) => index % this.worldSize === this.rank)),
    );
    return completions.reduce((sum, completion) => sum + completion.tokens.length, 0);
  }

  #rowsOf(prompts: readonly Prompt[]): Prompt[] {
    return prompts.flatMap((prompt) => Array.from({ length: this.config.groupSize }, () => prompt));
  }

  #complete(rows: readonly Prompt[]) {
    const options: GenerateOptions = {
      keys: rows.map(({ id }, index) => hashString(`${id}/${index % this.config.groupSize}`)),
    };
    return this.engine.generate(
      rows.map(({ tokens }) => tokens),
      this.sampling(this.config.temperature),
      options,
    );
  }
}
