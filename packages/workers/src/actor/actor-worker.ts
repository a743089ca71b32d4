import { type EpisodeGroup, TreadleError } from "@treadle/contracts";
import type { TrainingEngine } from "@treadle/engines";
import {
  type Algorithm,
  AlgorithmConfig,
  createAlgorithm,
  findStaleGroups,
  packSamples,
  packSupervised,
} from "@treadle/learning";
import type { Source, WorkerContext } from "@treadle/runtime";
import { z } from "zod";
import { createEngine, EngineConfig } from "../engine.ts";
import { TrainerWorker } from "../engine-worker.ts";

export const ActorConfig = EngineConfig.extend({
  paddingToken: z.int().nonnegative().default(0),
  algorithm: AlgorithmConfig,
  learningRate: z.number().positive(),
  maxGradNorm: z.number().positive().default(1),
  weightDecay: z.number().nonnegative().default(0),
  /** W2: episodes that are older are refused; the workflow's `flow.maxStaleness` */
  maxStaleness: z.int().nonnegative().default(0),
});
export type ActorConfig = z.infer<typeof ActorConfig>;

/** A sequence to imitate: `mask` is 1 at the tokens to learn. */
export type Demonstration = { readonly tokens: Int32Array; readonly mask: Float32Array };
export const Demonstration: z.ZodType<Demonstration> = z.object({
  tokens: z.instanceof(Int32Array),
  mask: z.instanceof(Float32Array),
});

export type ImitationOptions = {
  readonly updates: number;
  /** demonstrations of one update, over all ranks */
  readonly rows: number;
  readonly learningRate: number;
};

/**
 * Trains the policy. Its ranks are data-parallel replicas: each takes its part of the batch, gradients are summed over
 * ranks before the one optimiser step, so any number of ranks and any chunking takes the same step up to rounding.
 */
export class ActorWorker extends TrainerWorker<ActorConfig, TrainingEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly saves = ["train", "imitate"];

  readonly #algorithm: Algorithm;

  constructor(context: WorkerContext<ActorConfig>) {
    super(context);
    this.#algorithm = createAlgorithm(this.config.algorithm);
  }

  override async setup(): Promise<void> {
    this.engine = await createEngine(this.config, this.devices.ids.length, this.seed);
    this.published = this.engine.exportWeights();
  }

  /** One optimiser step over all groups of the stream; the gradient accumulates while they arrive. */
  async train(groups: Source<EpisodeGroup>): Promise<Record<string, number>> {
    await using _ = await this.devices.lock();
    const totals = new Totals();
    // Gradients are state until the step is taken, so batches come back if this process dies before.
    for await (const batch of groups.batches({ acknowledge: "call" })) {
      this.#refuseStale(batch);
      totals.observe(batch);
      const { kept } = this.#algorithm.filter(batch);
      totals.trainedGroups += kept.length;
      if (kept.length === 0) continue;
      const packed = packSamples(this.#algorithm.advantages(kept), {
        columns: this.config.model.contextLength,
        maxRows: this.config.model.microBatchRows,
        paddingToken: this.config.paddingToken,
        loss: this.#algorithm.loss,
        normalisation: this.#algorithm.normalisation,
      });
      using _compute = this.timer("forward-backward");
      for (const { batch: rows, divisor } of packed) {
        const metrics = await this.engine.forwardBackward(rows, this.#algorithm.loss);
        totals.divisor += divisor;
        totals.loss += metrics.loss;
        totals.entropy += metrics.entropy;
        totals.kl += metrics.kl;
        totals.clipFraction += metrics.clipFraction;
        totals.weight += metrics.weight;
      }
    }
    await this.#sumOverRanks(totals);
    const gradNorm = await this.#step(this.config.learningRate, totals.divisor);
    return { ...totals.metrics(), gradNorm, policyVersion: this.engine.policyVersion };
  }

  /** Supervised steps on demonstrations, for a policy that has to know something before rewards can exist. */
  async imitate(demonstrations: Source<Demonstration>, options: ImitationOptions): Promise<{ loss: number }> {
    await using _ = await this.devices.lock();
    const rows = Math.ceil(options.rows / this.worldSize);
    let loss = 0;
    for (let update = 0; update < options.updates; update++) {
      const batch = await demonstrations.take({ items: rows, acknowledge: "call" });
      const totals = new Totals();
      const packed = packSupervised(batch ?? [], {
        columns: this.config.model.contextLength,
        maxRows: this.config.model.microBatchRows,
        paddingToken: this.config.paddingToken,
      });
      using _compute = this.timer("forward-backward");
      for (const { batch: rectangle, divisor } of packed) {
        const metrics = await this.engine.forwardBackward(rectangle, { type: "cross-entropy" });
        totals.divisor += divisor;
        totals.loss += metrics.loss;
        totals.weight += metrics.weight;
      }
      await this.#sumOverRanks(totals);
      await this.#step(options.learningRate, totals.divisor);
      loss = totals.loss / Math.max(1, totals.weight);
    }
    return { loss };
  }

  async #sumOverRanks(totals: Totals): Promise<void> {
    if (this.worldSize === 1) return;
    using _ = this.timer("all-reduce");
    const gradients = this.engine.gradients();
    const both = new Float32Array(gradients.length + totals.length);
    both.set(gradients);
    both.set(totals.toArray(), gradients.length);
    const sum = await this.messages.allReduceSum(both);
    this.engine.setGradients(sum.slice(0, gradients.length));
    totals.fromArray(sum.subarray(gradients.length));
  }

  /** A step without anything to learn from still is one: the version moves on, the weights do not. */
  async #step(learningRate: number, divisor: number): Promise<number> {
    const { maxGradNorm, weightDecay } = this.config;
    const scale = divisor > 0 ? 1 / divisor : 0;
    const step = { learningRate: divisor > 0 ? learningRate : 0, scale, maxGradNorm, weightDecay };
    using _compute = this.timer("optimiser step");
    const { gradNorm } = await this.engine.optimStep(step);
    this.published = this.engine.exportWeights();
    return gradNorm;
  }

  /** W2. */
  #refuseStale(groups: readonly EpisodeGroup[]): void {
    const [stale] = findStaleGroups(groups, this.engine.policyVersion, this.config.maxStaleness);
    if (!stale) return;
    throw new TreadleError(
      "learning.invalid-batch",
      `episodes of prompt '${stale.group.promptId}' are '${stale.staleness}' policy versions old; at most ${this.config.maxStaleness} are allowed (flow.maxStaleness)`,
    );
  }
}

const totalNames = [
  "divisor",
  "weight",
  "loss",
  "entropy",
  "kl",
  "clipFraction",
  "groups",
  "trainedGroups",
  "episodes",
  "reward",
  "tokens",
] as const;

/** Sums over everything that a step saw, on this rank and then on all. */
class Totals implements Record<(typeof totalNames)[number], number> {
  divisor = 0;
  weight = 0;
  loss = 0;
  entropy = 0;
  kl = 0;
  clipFraction = 0;
  groups = 0;
  trainedGroups = 0;
  episodes = 0;
  reward = 0;
  tokens = 0;

  readonly length = totalNames.length;

  observe(groups: readonly EpisodeGroup[]): void {
    for (const { episodes } of groups) {
      this.groups++;
      this.episodes += episodes.length;
      for (const episode of episodes) {
        this.reward += episode.reward;
        this.tokens += episode.tokens.length - episode.promptLength;
      }
    }
  }

  toArray(): Float32Array {
    return Float32Array.from(totalNames, (name) => this[name]);
  }

  fromArray(values: Float32Array): void {
    totalNames.forEach((name, index) => {
      this[name] = values[index] as number;
    });
  }

  metrics(): Record<string, number> {
    const perWeight = 1 / Math.max(1e-12, this.weight);
    return {
      reward: this.reward / Math.max(1, this.episodes),
      tokens: this.tokens,
      loss: this.loss * perWeight,
      entropy: this.entropy * perWeight,
      kl: this.kl * perWeight,
      clipFraction: this.clipFraction * perWeight,
      trainedGroups: this.trainedGroups / Math.max(1, this.groups),
    };
  }
}
