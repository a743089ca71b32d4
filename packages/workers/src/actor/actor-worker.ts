import { type EngineFacts, type Episode, type EpisodeGroup, type LossSpec, TreadleError } from "@treadle/contracts";
import type { TrainingEngine } from "@treadle/engines";
import {
  type Algorithm,
  AlgorithmConfig,
  advantageMoments,
  correctRollout,
  createAlgorithm,
  createRandom,
  emptyBatch,
  findStaleGroups,
  minibatchesOf,
  normaliseAdvantages,
  type PackedBatch,
  type PackOptions,
  packForScoring,
  packSamples,
  packSupervised,
  RolloutCorrectionConfig,
  type TrainSample,
  unpackEntries,
  wasSampledBefore,
} from "@treadle/learning";
import type { Source, WorkerContext } from "@treadle/runtime";
import { z } from "zod";
import { createEngine, EngineConfig, trainerFacts } from "../engine.ts";
import { TrainerWorker } from "../engine-worker.ts";
import { encodeKept } from "../mismatch/kept-batch.ts";
import { MismatchWatch } from "../mismatch/mismatch-watch.ts";
import { askedAhead, DevicesAhead } from "./ahead.ts";
import type { Demonstration, ImitationOptions } from "./imitation.ts";
import { momentsOverRanks } from "./rank-moments.ts";
import { TrainingTotals } from "./training-totals.ts";

export const ActorConfig = EngineConfig.extend({
  paddingToken: z.int().nonnegative().default(0),
  algorithm: AlgorithmConfig,
  learningRate: z.number().positive(),
  maxGradNorm: z.number().positive().default(1),
  weightDecay: z.number().nonnegative().default(0),
  /** passes over the episodes of a step, and optimiser steps of a pass */
  epochs: z.int().positive().default(1),
  minibatches: z.int().positive().default(1),
  /** W2: episodes that are more calls of `train` old are refused; the workflow's `flow.maxStaleness` */
  maxStaleness: z.int().nonnegative().default(0),
  /** of what was rescored: sampled by older weights or another engine than those that are trained, as they are when the step begins */
  rolloutCorrection: RolloutCorrectionConfig.prefault({}),
  /** of Adam: how slowly its estimate of squared gradients forgets */
  beta2: z.number().min(0).lt(1).default(0.99),
});
export type ActorConfig = z.infer<typeof ActorConfig>;

/**
 * Trains the policy, and its critic where the algorithm has one. Its ranks are data-parallel replicas: each takes its part
 * of every round, gradients are summed over ranks before every optimiser step, so any number of ranks and any chunking takes
 * the same step up to rounding (with minibatches: the same up to which episodes meet in one). Ranks call their engines equally often,
 * with nothing where one has less than another, so those may meet in every call.
 */
export class ActorWorker extends TrainerWorker<ActorConfig, TrainingEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly modelWork = "training";
  static override readonly saves = ["train", "imitate"];

  static override engineFacts(config: ActorConfig): EngineFacts {
    return trainerFacts(config);
  }

  readonly #algorithm: Algorithm;
  #watch = new MismatchWatch(0);
  #numKept = 0;

  constructor(context: WorkerContext<ActorConfig>) {
    super(context);
    this.#algorithm = createAlgorithm(this.config.algorithm);
  }

  /** What trains; a subclass may bring an engine of its own. */
  protected createEngine(): Promise<TrainingEngine> {
    return createEngine(this, this.seed);
  }

  override async setup(): Promise<void> {
    this.engine = await this.createEngine();
    await this.publish();
  }

  /**
   * One optimiser step over all groups of the stream, its gradient accumulating while they arrive; or, where several
   * epochs or minibatches are configured or advantages are scaled over the whole step, `epochs * minibatches` steps over
   * what has been collected. A learning rate given here takes the place of the configured one.
   */
  train(
    groups: Source<EpisodeGroup>,
    { learningRate = this.config.learningRate }: { readonly learningRate?: number } = {},
  ): Promise<Record<string, number>> {
    return this.training(() => this.#train(groups, learningRate));
  }

  async #train(groups: Source<EpisodeGroup>, learningRate: number): Promise<Record<string, number>> {
    const { keptBatches, keptMebibytes } = this.config.rolloutCorrection;
    const { policyVersion } = this.engine;
    this.#watch = new MismatchWatch(this.#numKept < keptBatches ? keptMebibytes * 2 ** 20 : 0);
    const { epochs, minibatches } = this.config;
    const streams = epochs * minibatches === 1 && !this.#algorithm.needsWholeBatch;
    const gathered: EpisodeGroup[] = [];
    const collected: TrainSample[] = [];
    const seen = new TrainingTotals();
    // A rank that is alone and trains on all of it takes what has come, while others have its devices.
    const isGathered = !streams && this.worldSize === 1 && groups.granularity === "all";
    // Gradients are state until the step is taken, so batches come back if this process dies before.
    const options = { acknowledge: "call", ...(isGathered ? { asTheyCome: true } : { gang: true }) } as const;
    // Its first batch is asked for before the devices: it need not wait for them to look at what it gets.
    const batches = askedAhead(groups.batches(options));
    await using devices = new DevicesAhead(this.devices.lock());
    const ready = () => devices.ready(() => this.dropPartialGradient());
    for await (const batch of devices.unlessRefused(batches)) {
      this.#refuseStale(batch);
      seen.observe(batch);
      const { kept, withoutPolicyTerm } = this.#algorithm.filter(batch);
      seen.trainedGroups += kept.length - withoutPolicyTerm;
      if (isGathered) gathered.push(...kept);
      const samples = this.#algorithm.advantages(isGathered ? kept : await this.#rescore(kept, ready));
      if (streams) {
        await ready();
        await this.#forwardBackward(this.#pack(this.#correct(samples, seen)), this.#algorithm.loss, seen);
      } else collected.push(...samples);
    }
    if (streams) {
      await ready();
      const gradNorm = await this.#step(learningRate, seen);
      return await this.#finishTraining(seen, gradNorm, policyVersion);
    }
    // All at once: rounding differs with the micro-batch that an episode is scored in, which must not depend on when it came.
    const rescored = isGathered ? await this.#rescore(gathered, ready) : gathered;
    const unscaled = rescored === gathered ? collected : this.#algorithm.advantages(rescored);
    const scaled = this.#algorithm.needsWholeBatch ? await this.#normalise(unscaled) : unscaled;
    const samples = this.#correct(scaled, seen);
    const random = createRandom(`${this.seed}/${this.rank}/${this.engine.policyVersion}`);
    const drawn = [...minibatchesOf(samples, this.config, random)];
    // Every sample is in the first epoch: what is bad in a later minibatch is refused before an earlier one moves the weights.
    const firstEpoch = drawn.slice(0, minibatches).map((minibatch) => this.#pack(minibatch));
    await ready();
    const totals = new TrainingTotals();
    let part = seen; // what was seen is summed over ranks with the first minibatch
    let gradNorm = 0;
    for (const [index, minibatch] of drawn.entries()) {
      await this.#forwardBackward(firstEpoch[index] ?? this.#pack(minibatch), this.#algorithm.loss, part);
      gradNorm = await this.#step(learningRate, part);
      totals.add(part);
      part = new TrainingTotals();
    }
    return await this.#finishTraining(totals, gradNorm, policyVersion);
  }

  /** Supervised steps on demonstrations, for a policy whose right answers would otherwise be too rare for rewards to teach much soon. */
  imitate(demonstrations: Source<Demonstration>, options: ImitationOptions): Promise<{ loss: number }> {
    return this.training(() => this.#imitate(demonstrations, options));
  }

  async #imitate(demonstrations: Source<Demonstration>, options: ImitationOptions): Promise<{ loss: number }> {
    await using _ = await this.devices.lock();
    await this.dropPartialGradient();
    const { rows, updates, learningRate } = options;
    const share = Math.floor(rows / this.worldSize) + (this.rank < rows % this.worldSize ? 1 : 0);
    const all: PackedBatch[][] = [];
    // A bad demonstration of the last update is refused before the first moves the weights.
    for (let update = 0; update < updates; update++) {
      const batch = await demonstrations.take({ items: share, acknowledge: "call", gang: true });
      all.push(packSupervised(batch ?? [], this.#packing));
    }
    let loss = 0;
    for (const packed of all) {
      const totals = new TrainingTotals();
      await this.#forwardBackward(packed, { type: "cross-entropy" }, totals);
      await this.#step(learningRate, totals);
      loss = totals.loss / Math.max(1, totals.weight);
    }
    await this.publish();
    return { loss };
  }

  get #packing(): PackOptions {
    const { model, paddingToken } = this.config;
    return { ...model, paddingToken, vocabularySize: model.vocabSize };
  }

  async #finishTraining(
    totals: TrainingTotals,
    gradNorm: number,
    policyVersion: number,
  ): Promise<Record<string, number>> {
    if (totals.meanMismatchKl > this.config.rolloutCorrection.alarm) await this.#raiseAlarm(totals, policyVersion);
    this.#watch = new MismatchWatch(0); // what it has seen is as large as a batch
    await this.publish();
    return { ...totals.metrics(), gradNorm, policyVersion: this.engine.policyVersion };
  }

  /**
   * What another policy has sampled is scored with the weights that the step begins with, in the engine that trains them.
   * They are the proximal policy of AReaL's decoupled objective (arXiv:2505.24298): ratio and clip are against them, and the
   * importance weight makes up for the sampler. Another policy is one of older weights (inference, which pulls weights when
   * rollout does, has scored with the sampler's version or one in between) or, where nobody has scored, of another engine.
   */
  async #rescore(groups: readonly EpisodeGroup[], ready: () => Promise<void>): Promise<readonly EpisodeGroup[]> {
    const { policyVersion, kind } = this.engine;
    const isOfOther = (episode: Episode): boolean =>
      wasSampledBefore(episode, policyVersion) ||
      (episode.oldLogprobs === undefined && (episode.engine ?? kind) !== kind);
    const others = groups.flatMap(({ episodes }) => episodes.filter(isOfOther));
    const packed = packForScoring(others, this.#packing);
    const numBatches = await this.#mostOfRanks(packed.length);
    if (numBatches === 0) return groups;
    await ready();
    using _ = this.timer("rescore");
    const rectangles: Float32Array[] = [];
    for (const { batch } of packed) rectangles.push(await this.engine.logprobs(batch));
    for (let filler = packed.length; filler < numBatches; filler++) await this.engine.logprobs(emptyBatch);
    const logprobs = unpackEntries(packed, rectangles, others.length);
    const rescored = new Map(others.map((episode, at) => [episode, { ...episode, oldLogprobs: logprobs[at] }]));
    return groups.map((group) => ({ ...group, episodes: group.episodes.map((one) => rescored.get(one) ?? one) }));
  }

  /** Weights what another policy has sampled than the one that the ratio is taken against. */
  #correct(samples: readonly TrainSample[], totals: TrainingTotals): readonly TrainSample[] {
    const corrected = correctRollout(samples, this.config.rolloutCorrection, this.#algorithm.loss.ratio);
    totals.addMismatch(corrected.mismatch);
    this.#watch.observe(samples, corrected.meanKl);
    return corrected.samples;
  }

  /** Each rank keeps what it has trained on, and the first warns; what people read never stops a run. `policyVersion`: as the step began. */
  async #raiseAlarm(totals: TrainingTotals, policyVersion: number): Promise<void> {
    const { alarm, keptBatches } = this.config.rolloutCorrection;
    const isKept = this.#numKept < keptBatches;
    if (isKept) this.#numKept++;
    const { effectiveSamples = 1, cut = 0, mismatchKl: meanKl = 0, mismatchKlMax: maxKl = 0 } = totals.metrics();
    const step = this.step ?? 0;
    if (this.rank === 0)
      this.log.warn(
        `what was sampled is '${meanKl.toPrecision(3)}' nats a token from what is trained, more than rolloutCorrection.alarm ('${alarm}'): ` +
          `the engines compute differently, or weights are far apart; ${
            isKept
              ? `the batch of step '${step}' is kept in artifacts 'mismatch/': 'treadle mismatch' shows it, and with --checkpoint scores it again`
              : `its batch is not kept, as those of '${keptBatches}' alarms are (rolloutCorrection.keptBatches)`
          }`,
      );
    if (!isKept) return;
    const facts = {
      ...{ step, worker: `${this.component}/${this.rank}`, numRanks: this.worldSize, policyVersion },
      ...(this.publishedId !== undefined && { weightsId: this.publishedId }),
      ...{ engine: this.engine.kind, alarm, meanKl, maxKl, effectiveSamples, cut },
      numEpisodes: this.#watch.numSeen,
    };
    try {
      for (const { name, data } of encodeKept(this.rank, facts, this.#watch.episodes))
        await this.artifacts.write(name, data);
    } catch (error) {
      this.log.warn(`the batch is not kept: ${(error as Error).message}`);
    }
  }

  #pack(samples: readonly TrainSample[]): PackedBatch[] {
    const { loss, normalisation } = this.#algorithm;
    return packSamples(samples, { ...this.#packing, loss, normalisation });
  }

  async #forwardBackward(packed: readonly PackedBatch[], loss: LossSpec, totals: TrainingTotals): Promise<void> {
    const numBatches = await this.#mostOfRanks(packed.length);
    using _ = this.timer("forward-backward");
    this.hasGradient = true;
    for (const { batch, divisor } of packed) {
      totals.addLoss(await this.engine.forwardBackward(batch, loss), divisor);
    }
    for (let filler = packed.length; filler < numBatches; filler++) await this.engine.forwardBackward(emptyBatch, loss);
  }

  async #mostOfRanks(own: number): Promise<number> {
    if (this.worldSize === 1) return own;
    const each = Float64Array.from({ length: this.worldSize }, (_, rank) => (rank === this.rank ? own : 0));
    return Math.max(...(await this.messages.allReduceSum(each)));
  }

  /** Advantages are scaled over all policy tokens of the step, on all ranks. */
  async #normalise(samples: readonly TrainSample[]): Promise<TrainSample[]> {
    const moments = await momentsOverRanks(this.messages, this.worldSize, advantageMoments(samples));
    return normaliseAdvantages(samples, moments);
  }

  async #sumOverRanks(totals: TrainingTotals): Promise<void> {
    if (this.worldSize === 1) return;
    using _ = this.timer("all-reduce");
    await this.engine.setGradients(await this.messages.allReduceSum(await this.engine.gradients()));
    totals.fromArray(await this.messages.allReduceSum(totals.toArray(this.rank, this.worldSize)));
  }

  /** A step without anything to learn from still is one: the version moves on, the weights do not. */
  async #step(learningRate: number, totals: TrainingTotals): Promise<number> {
    await this.#sumOverRanks(totals);
    const { maxGradNorm, weightDecay, beta2 } = this.config;
    const { divisor } = totals;
    const scale = divisor > 0 ? 1 / divisor : 0;
    const step = { learningRate: divisor > 0 ? learningRate : 0, scale, maxGradNorm, weightDecay, beta2 };
    using _compute = this.timer("optimiser step");
    const { gradNorm } = await this.engine.optimStep(step);
    this.hasGradient = false;
    return gradNorm;
  }

  /** W2. Every optimiser step is a version, and a step of the workflow may take several. */
  #refuseStale(groups: readonly EpisodeGroup[]): void {
    const { maxStaleness, epochs, minibatches } = this.config;
    const maxVersions = maxStaleness * epochs * minibatches;
    const [stale] = findStaleGroups(groups, this.engine.policyVersion, maxVersions);
    if (!stale) return;
    throw new TreadleError(
      "learning.invalid-batch",
      `episodes of prompt '${stale.group.promptId}' are '${stale.staleness}' policy versions old, at most ${maxVersions} are allowed (flow.maxStaleness); call 'rollout.pullWeights(actor)' at the beginning of each step`,
    );
  }
}
