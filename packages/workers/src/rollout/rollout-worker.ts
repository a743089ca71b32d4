import type { Completion, EpisodeGroup, Prompt, Sampling } from "@treadle/contracts";
import { scoreCompletion } from "@treadle/learning";
import type { Sink, Source, StreamItem } from "@treadle/runtime";
import {
  type EvaluationCount,
  GenerationWorker,
  type RolloutConfig,
  type SharedCall,
  sampleKey,
  toEpisode,
} from "./generation-worker.ts";
import { GroupDelivery } from "./group-delivery.ts";
import type { PredictionMetrics, SharingMetrics } from "./order-config.ts";

/** Generates completions and scores them. */
export class RolloutWorker extends GenerationWorker<RolloutConfig> {
  static override readonly module: string = import.meta.url;

  /** One group of `groupSize` scored episodes for each prompt. */
  async generate(
    prompts: Source<Prompt>,
    groups: Sink<EpisodeGroup>,
  ): Promise<{ readonly tokens: number } & SharingMetrics & PredictionMetrics> {
    await using _ = await this.lock();
    let tokens = 0;
    await using shared = this.share();
    for await (const batch of prompts.itemBatches()) {
      this.warnOfCut(batch.map(({ value }) => value));
      const made = await this.#complete(batch, groups, shared);
      for (const group of made)
        for (const episode of group.episodes) tokens += episode.tokens.length - episode.promptLength;
      await this.keepCompletions(
        batch.map(({ value }) => value),
        made,
      );
    }
    await shared?.finish();
    return { tokens, ...shared?.metrics, ...(await this.learnLengths()) };
  }

  /** Greedy completions of this rank's share of the prompts, judged by the reward. */
  async evaluate(prompts: readonly Prompt[]): Promise<EvaluationCount> {
    await using _ = await this.devices.lock();
    const mine = prompts.filter((_, index) => index % this.worldSize === this.rank);
    const completions = await this.engine.generate(
      mine.map((prompt) => prompt.tokens),
      this.sampling(0),
    );
    const scores = await Promise.all(
      mine.map((prompt, index) => this.#score(prompt, completions[index] as Completion)),
    );
    return { correct: scores.filter((score) => score >= 1).length, total: mine.length };
  }

  /** Each group is put as soon as it is complete. */
  async #complete(
    batch: readonly StreamItem<Prompt>[],
    groups: Sink<EpisodeGroup>,
    shared: SharedCall | undefined,
  ): Promise<readonly EpisodeGroup[]> {
    const { groupSize } = this.config;
    const rows = batch.flatMap(({ value }) => Array.from({ length: groupSize }, () => value));
    const delivery = new GroupDelivery(batch, groupSize, groups);
    const episode = async (prompt: Prompt, completion: Completion) =>
      toEpisode(this.engine.kind, prompt, completion, await this.#score(prompt, completion));
    const made = (index: number, completion: Completion) =>
      delivery.add(index, episode(rows[index] as Prompt, completion));
    const samples = rows.map((_, index) => index % groupSize);
    if (shared) {
      using _ = this.timer("decode");
      await shared.play(rows, samples, made);
    } else await this.#generate(rows, samples, made);
    return delivery.finish();
  }

  async #generate(
    rows: readonly Prompt[],
    samples: readonly number[],
    made: (index: number, completion: Completion) => void,
  ): Promise<void> {
    using _ = this.timer("decode");
    const order = this.orderOf(rows);
    const startMs = performance.now();
    const completions = await this.engine.generate(
      rows.map(({ tokens }) => tokens),
      this.sampling(this.config.temperature),
      {
        keys: rows.map((prompt, index) => sampleKey(prompt, samples[index] as number)),
        order: order?.options,
        onCompletion: (index, completion) => {
          order?.ended(index, completion);
          made(index, completion);
        },
      },
    );
    this.took((performance.now() - startMs) / 1000, completions);
  }

  protected sampling(temperature: number): Sampling {
    return { maxTokens: this.config.maxTokens, temperature, stopTokens: [this.tokenizer.stopToken], seed: this.seed };
  }

  async #score(prompt: Prompt, completion: Completion): Promise<number> {
    // Without a stop the answer is not finished, whatever it says so far.
    if (completion.finishReason !== "stop") return 0;
    const text = this.tokenizer.decode(completion.tokens);
    return scoreCompletion(this.reward, prompt, { tokens: completion.tokens, text });
  }
}
