import {
  type Completion,
  completionFolder,
  type Episode,
  type EpisodeGroup,
  minTemperature,
  type Prompt,
  TreadleError,
} from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import {
  builtInRewards,
  type CharacterTokenizer,
  createCharacterTokenizer,
  hashString,
  type Reward,
  type RewardRegistry,
} from "@treadle/learning";
import type { WorkerContext, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import type { ActorWorker } from "../actor/actor-worker.ts";
import { createGenerationEngine, EngineConfig } from "../engine.ts";
import { EngineWorker } from "../engine-worker.ts";
import { pullWeights } from "../weights.ts";
import { completionRecord, sampleOf } from "./completion-record.ts";

export const RolloutConfig = EngineConfig.extend({
  /** the characters of the tokenizer, after padding and stop */
  alphabet: z.string().min(1),
  /** completions of one prompt: what group-relative algorithms compare */
  groupSize: z.int().positive(),
  maxTokens: z.int().positive(),
  temperature: z.number().min(minTemperature).default(1),
  /** `{ name, … }` of a reward plugin */
  reward: z.looseObject({ name: z.string() }),
  /** episodes that each rank leaves for people to read: so many of the first step and of every `everySteps`th; 0 is none; default: 8 of every 10th */
  completions: z.strictObject({ everySteps: z.int().positive(), episodes: z.int().nonnegative() }).optional(),
});
export type RolloutConfig = z.infer<typeof RolloutConfig>;

const usualCompletions = { everySteps: 10, episodes: 8 };

/** Share of greedy completions with full reward, over `total` prompts of this rank. */
export type EvaluationCount = { readonly correct: number; readonly total: number };

/** How often a policy is judged on problems that it never trains on, and on how many. */
export const EvaluationConfig = z.strictObject({
  /** held out: they judge, and choose nothing */
  problems: z.int().positive(),
  /** others: they choose the checkpoint that is kept as the best, and when imitation ends */
  validationProblems: z.int().positive(),
  everySteps: z.int().positive(),
});

/** Over what all ranks counted. */
export const accuracyOf = (counts: readonly EvaluationCount[]): number =>
  counts.reduce((sum, count) => sum + count.correct, 0) / counts.reduce((sum, count) => sum + count.total, 0);

/** An engine worker that generates text of a policy it pulls from the actor, and judges it by a reward. */
export abstract class GenerationWorker<C extends RolloutConfig> extends EngineWorker<C, GenerationEngine> {
  static override readonly replays = ["pullWeights"];
  static override readonly resizes = true;

  protected readonly tokenizer: CharacterTokenizer;
  protected readonly reward: Reward;

  /** A vocabulary that is too small, or a reward that nobody has registered. */
  static override checkConfig({ alphabet, model, reward }: RolloutConfig): void {
    const { vocabularySize } = createCharacterTokenizer(alphabet);
    if (vocabularySize > model.vocabSize)
      throw new TreadleError(
        "config.invalid",
        `'model.vocabSize' is '${model.vocabSize}', but the alphabet '${alphabet}' needs '${vocabularySize}': its characters, padding and stop; raise it to that`,
      );
    // biome-ignore lint/complexity/noThisInStatic: the rewards of the class that is launched
    this.prototype.rewards().create(reward);
  }

  constructor(context: WorkerContext<C>) {
    super(context);
    this.tokenizer = createCharacterTokenizer(this.config.alphabet);
    this.reward = this.rewards().create(this.config.reward);
  }

  /** The rewards that `reward.name` may name; a subclass adds its own. Reads nothing of the rank: it is also asked without one. */
  protected rewards(): RewardRegistry {
    return builtInRewards;
  }

  override async setup(): Promise<void> {
    this.engine = await createGenerationEngine(this, this.seed);
  }

  /** Leaves some of a step's episodes as text, of the first batch that the rank made; what people read never stops a run. */
  protected async keepCompletions(prompts: readonly Prompt[], groups: readonly EpisodeGroup[]): Promise<void> {
    const { step, rank } = this;
    const { everySteps, episodes } = this.config.completions ?? usualCompletions;
    const isDue = step !== undefined && (step === 1 || step % everySteps === 0);
    if (!isDue || episodes === 0 || this.#keptStep === step) return;
    this.#keptStep = step;
    const worker = `${this.component}/${rank}`;
    const records = sampleOf(groups, episodes).map(({ group, episode }) =>
      completionRecord(episode, prompts[group] as Prompt, { step, worker, tokenizer: this.tokenizer }),
    );
    const name = `step-${String(step).padStart(6, "0")}-${this.component}-${rank}.jsonl`;
    const text = `${records.map((record) => JSON.stringify(record)).join("\n")}\n`;
    await this.artifacts.write(`${completionFolder}/${name}`, text).catch((error: Error) => {
      if (!this.#hasWarned) this.log.warn(`episodes of step ${step} are not kept: ${error.message}`);
      this.#hasWarned = true;
    });
  }

  #keptStep: number | undefined;
  #hasWarned = false;

  async pullWeights(actor: WorkerGroup<ActorWorker>): Promise<void> {
    await pullWeights(this.engine, actor, this);
  }
}

/** What the draws of one sample of a prompt depend on: neither the batch it is in nor the rank that makes it. */
export const sampleKey = (prompt: Prompt, sample: number): number => hashString(`${prompt.id}/${sample}`);

/** From and to, counted after the prompt. */
export type Span = readonly [from: number, to: number];

/** A completion of a kind of engine with its prompt; tokens in `others` are somebody else's than the policy's, so they are masked. */
export function toEpisode(
  engine: string,
  prompt: Prompt,
  { tokens: written, logprobs: sampled, temperature, finishReason, policyVersion }: Completion,
  reward: number,
  others: readonly Span[] = [],
): Episode {
  const promptLength = prompt.tokens.length;
  const length = promptLength + written.length;
  const tokens = new Int32Array(length);
  tokens.set(prompt.tokens);
  tokens.set(written, promptLength);
  const logprobs = new Float32Array(length);
  logprobs.set(sampled, promptLength);
  const mask = new Float32Array(length).fill(1, promptLength);
  const policyVersions = new Int32Array(length).fill(-1, 0, promptLength).fill(policyVersion, promptLength);
  for (const [from, to] of others) {
    mask.fill(0, promptLength + from, promptLength + to);
    policyVersions.fill(-1, promptLength + from, promptLength + to);
  }
  return {
    promptId: prompt.id,
    promptLength,
    tokens,
    mask,
    logprobs,
    temperature,
    policyVersions,
    engine,
    finishReason,
    reward,
  };
}
