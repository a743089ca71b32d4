import type { Completion, Episode, EpisodeGroup, Prompt, Sampling } from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import {
  builtInRewards,
  type CharacterTokenizer,
  createCharacterTokenizer,
  hashString,
  type Reward,
  type RewardRegistry,
  scoreCompletion,
} from "@treadle/learning";
import type { Sink, Source, WorkerContext, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import type { ActorWorker } from "../actor/actor-worker.ts";
import { createEngine, EngineConfig } from "../engine.ts";
import { EngineWorker } from "../engine-worker.ts";
import { pullWeights } from "../weights.ts";

export const RolloutConfig = EngineConfig.extend({
  /** the characters of the tokenizer, after padding and stop */
  alphabet: z.string().min(1),
  /** completions of one prompt: what group-relative algorithms compare */
  groupSize: z.int().positive(),
  maxTokens: z.int().positive(),
  temperature: z.number().positive().default(1),
  /** `{ name, … }` of a reward plugin */
  reward: z.looseObject({ name: z.string() }),
});
export type RolloutConfig = z.infer<typeof RolloutConfig>;

/** Share of greedy completions with full reward, over `total` prompts of this rank. */
export type EvaluationCount = { readonly correct: number; readonly total: number };

/** Generates completions and scores them. */
export class RolloutWorker extends EngineWorker<RolloutConfig, GenerationEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly replays = ["pullWeights"];

  protected readonly tokenizer: CharacterTokenizer;
  protected readonly reward: Reward;

  constructor(context: WorkerContext<RolloutConfig>) {
    super(context);
    this.tokenizer = createCharacterTokenizer(this.config.alphabet);
    this.reward = this.rewards().create(this.config.reward);
  }

  /** The rewards that `reward.name` may name; a subclass adds its own. */
  protected rewards(): RewardRegistry {
    return builtInRewards;
  }

  override async setup(): Promise<void> {
    this.engine = await createEngine(this.config, this.devices.ids.length, this.seed + this.rank);
  }

  async pullWeights(actor: WorkerGroup<ActorWorker>): Promise<void> {
    await using _ = await this.devices.lock();
    await pullWeights(this.engine, actor, this.rank);
  }

  /** One group of `groupSize` scored episodes for each prompt. */
  async generate(prompts: Source<Prompt>, groups: Sink<EpisodeGroup>): Promise<{ tokens: number }> {
    await using _ = await this.devices.lock();
    let tokens = 0;
    for await (const batch of prompts.batches()) {
      const made = await this.#groupsOf(batch);
      for (const group of made)
        for (const episode of group.episodes) tokens += episode.tokens.length - episode.promptLength;
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
      this.#sampling(0, 0),
    );
    const scores = await Promise.all(
      mine.map((prompt, index) => this.#score(prompt, completions[index] as Completion)),
    );
    return { correct: scores.filter((score) => score >= 1).length, total: mine.length };
  }

  async #groupsOf(batch: readonly Prompt[]): Promise<EpisodeGroup[]> {
    const { groupSize, temperature } = this.config;
    // The first prompt's id is unique in the run, so no two calls sample with the same seed.
    const seed = hashString(`${this.seed}/${batch[0]?.id}`);
    const rows = batch.flatMap((prompt) => Array.from({ length: groupSize }, () => prompt.tokens));
    using decode = this.timer("decode");
    const completions = await this.engine.generate(rows, this.#sampling(temperature, seed));
    decode[Symbol.dispose]();
    return Promise.all(
      batch.map(async (prompt, index) => {
        const own = completions.slice(index * groupSize, (index + 1) * groupSize);
        const episodes = await Promise.all(
          own.map(async (completion) => toEpisode(prompt, completion, await this.#score(prompt, completion))),
        );
        return { promptId: prompt.id, episodes };
      }),
    );
  }

  #sampling(temperature: number, seed: number): Sampling {
    return { maxTokens: this.config.maxTokens, temperature, stopTokens: [this.tokenizer.stopToken], seed };
  }

  async #score(prompt: Prompt, completion: Completion): Promise<number> {
    // Without a stop the answer is not finished, whatever it says so far.
    if (completion.finishReason !== "stop") return 0;
    const text = this.tokenizer.decode(completion.tokens);
    return scoreCompletion(this.reward, prompt, { tokens: completion.tokens, text });
  }
}

function toEpisode(prompt: Prompt, completion: Completion, reward: number): Episode {
  const promptLength = prompt.tokens.length;
  const length = promptLength + completion.tokens.length;
  const tokens = new Int32Array(length);
  tokens.set(prompt.tokens);
  tokens.set(completion.tokens, promptLength);
  const logprobs = new Float32Array(length);
  logprobs.set(completion.logprobs, promptLength);
  return {
    promptId: prompt.id,
    promptLength,
    tokens,
    mask: new Float32Array(length).fill(1, promptLength),
    logprobs,
    policyVersions: new Int32Array(length).fill(-1, 0, promptLength).fill(completion.policyVersion, promptLength),
    finishReason: completion.finishReason,
    reward,
  };
}
