import type { Completion, EpisodeGroup, Prompt, Sampling } from "@treadle/contracts";
import { scoreCompletion } from "@treadle/learning";
import type { Sink, Source } from "@treadle/runtime";
import type { EvaluationCount } from "./evaluation.ts";
import { GenerationWorker, type RolloutConfig, type RolloutMetrics } from "./generation-worker.ts";
import { toEpisode } from "./to-episode.ts";

/** Generates completions and scores them. */
export class RolloutWorker extends GenerationWorker<RolloutConfig> {
  static override readonly module: string = import.meta.url;

  /** One group of `groupSize` scored episodes for each prompt; with `tail` `batch` or `carry`, prompts that have none go to `late`. */
  async generate(
    prompts: Source<Prompt>,
    groups: Sink<EpisodeGroup>,
    late?: Sink<Prompt>,
  ): Promise<{ readonly tokens: number } & RolloutMetrics> {
    await using _ = await this.lock();
    let tokens = 0;
    const metrics = await this.play(prompts, groups, {
      late,
      judge: async (prompt, completion) =>
        toEpisode(this.engine.kind, prompt, completion, await this.#score(prompt, completion)),
      made: ({ episodes }) => {
        for (const episode of episodes) tokens += episode.tokens.length - episode.promptLength;
      },
    });
    return { tokens, ...metrics };
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
