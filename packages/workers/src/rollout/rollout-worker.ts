import type { Completion, EpisodeGroup, Prompt, Sampling } from "@treadle/contracts";
import { scoreCompletion } from "@treadle/learning";
import type { Sink, Source } from "@treadle/runtime";
import {
  type EvaluationCount,
  GenerationWorker,
  type RolloutConfig,
  sampleKey,
  toEpisode,
} from "./generation-worker.ts";

/** Generates completions and scores them. */
export class RolloutWorker extends GenerationWorker<RolloutConfig> {
  static override readonly module: string = import.meta.url;

  /** One group of `groupSize` scored episodes for each prompt. */
  async generate(prompts: Source<Prompt>, groups: Sink<EpisodeGroup>): Promise<{ tokens: number }> {
    await using _ = await this.devices.lock();
    let tokens = 0;
    for await (const batch of prompts.batches()) {
      const made = await this.#groupsOf(batch);
      for (const group of made)
        for (const episode of group.episodes) tokens += episode.tokens.length - episode.promptLength;
      await this.keepCompletions(batch, made);
      await groups.put(...made);
    }
    return { tokens };
  }

  /** Greedy completions of this rank's share of the prompts, judged by the reward. */
  async evaluate(prompts: readonly Prompt[]): Promise<EvaluationCount> {
    await using _ = await this.devices.lock();
    const mine = prompts.filter((_, index) => index % this.worldSize === this.rank);
    const completions = await this.engine.generate(
      mine.map((prompt) => prompt.tokens),
      this.#sampling(0),
    );
    const scores = await Promise.all(
      mine.map((prompt, index) => this.#score(prompt, completions[index] as Completion)),
    );
    return { correct: scores.filter((score) => score >= 1).length, total: mine.length };
  }

  async #groupsOf(batch: readonly Prompt[]): Promise<EpisodeGroup[]> {
    const { groupSize, temperature } = this.config;
    const rows = batch.flatMap((prompt) => Array.from({ length: groupSize }, () => prompt.tokens));
    const keys = batch.flatMap((prompt) => Array.from({ length: groupSize }, (_, sample) => sampleKey(prompt, sample)));
    using decode = this.timer("decode");
    const completions = await this.engine.generate(rows, this.#sampling(temperature), { keys });
    decode[Symbol.dispose]();
    return Promise.all(
      batch.map(async (prompt, index) => {
        const own = completions.slice(index * groupSize, (index + 1) * groupSize);
        const episodes = await Promise.all(
          own.map(async (completion) =>
            toEpisode(this.engine.kind, prompt, completion, await this.#score(prompt, completion)),
          ),
        );
        return { promptId: prompt.id, episodes };
      }),
    );
  }

  #sampling(temperature: number): Sampling {
    return { maxTokens: this.config.maxTokens, temperature, stopTokens: [this.tokenizer.stopToken], seed: this.seed };
  }

  async #score(prompt: Prompt, completion: Completion): Promise<number> {
    // Without a stop the answer is not finished, whatever it says so far.
    if (completion.finishReason !== "stop") return 0;
    const text = this.tokenizer.decode(completion.tokens);
    return scoreCompletion(this.reward, prompt, { tokens: completion.tokens, text });
  }
}
