import {
  type Completion,
  type LossMetrics,
  type LossSpec,
  type Sampling,
  type TrainBatch,
  TreadleError,
} from "@treadle/contracts";
import { z } from "zod";
import { breathe } from "../breathe.ts";
import {
  type EngineMemory,
  type GenerateOptions,
  type GenerationEngine,
  type JoiningCompletion,
  lossMetricNames,
  type TokenRows,
  type TrainingEngine,
} from "../engine.ts";
import { checkBegun, ModelEngine, resolveSampling } from "../model-engine.ts";
import { WorkMeter, type WorkSums } from "../work-meter.ts";
import { checkArrays, checkLoss, checkPrompts, checkRows, requireValueHead } from "./batches.ts";
import { Gate } from "./gate.ts";
import { Generation } from "./generation.ts";
import { KeptCaches } from "./kept-caches.ts";
import { type Pass, passesOf } from "./passes.ts";
import { lossGradient } from "./policy-loss.ts";
import { initialTransformer, TransformerConfig, transformerShapes } from "./transformer-config.ts";
import { TransformerModel } from "./transformer-model.ts";

/** Tokens computed at once, so that what layers keep of them fits into a core's cache. */
const scoredTokens = 512;
const trainedTokens = 192;

/**
 * A small transformer in this process, for generation and training.
 *
 * Owns its parameters and device arrays; nobody else touches them. Every computation is synchronous between two turns
 * of the event loop: one token of every sequence, a piece of a prompt, or some rows of a batch.
 * TE1 what reads or writes parameters across several turns (training, scoring, loading) runs one call after another.
 * TE2 generations run beside them and beside each other; parameters change only between two of their tokens, and then
 *    they start over from their prompts, or go on as `onNewWeights` says (W3, SL3, SL11).
 * TE3 a released engine holds no device array; calls that were running throw `engine.released` at their next turn.
 */
export class TransformerEngine extends ModelEngine implements GenerationEngine, TrainingEngine {
  override readonly kind = "embedded";
  readonly heedsNewWeights = true;
  readonly config: TransformerConfig;
  readonly #kept: KeptCaches;
  readonly #gate = new Gate();
  readonly #running = new Set<Generation>();
  #loaded: TransformerModel | undefined;
  #aborts = 0;
  /** that it had when it was released: caches come back with the work */
  readonly #meter = new WorkMeter();
  #lastBytes = 0;

  private constructor(config: TransformerConfig) {
    super(transformerShapes(config), (shape, index) => initialTransformer(config, shape, index));
    this.config = config;
    this.#kept = new KeptCaches(config.slots);
  }

  /** Throws `config.invalid` with every problem. */
  static async create(config: z.input<typeof TransformerConfig>): Promise<TransformerEngine> {
    const parsed = TransformerConfig.safeParse(config);
    if (!parsed.success) {
      throw new TreadleError("config.invalid", `transformer configuration refused: ${z.prettifyError(parsed.error)}`);
    }
    return new TransformerEngine(parsed.data);
  }

  override memory(): EngineMemory {
    const residentBytes = this.#loaded?.residentBytes ?? 0;
    const parametersBytes = this.parameters.values.byteLength;
    return { ...super.memory(), residentBytes, loadedBytes: Math.max(parametersBytes, this.#lastBytes, residentBytes) };
  }

  async generate(
    prompts: readonly Int32Array[],
    sampling: Sampling,
    options: GenerateOptions = {},
  ): Promise<Completion[]> {
    this.refuseReleased("generate");
    const { contextLength, vocabSize } = this.config;
    const resolved = resolveSampling(sampling);
    checkPrompts(prompts, options, contextLength, vocabSize);
    return this.computing(this.#generate(prompts, resolved, options));
  }

  abort(): void {
    this.#aborts++;
    this.#wake();
  }

  async pause(): Promise<void> {
    this.#gate.close();
  }

  resume(): void {
    this.#gate.open();
  }

  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<LossMetrics> {
    return this.exclusively("forwardBackward", async () => {
      checkRows(batch, this.config.contextLength, this.config.vocabSize);
      checkArrays(batch);
      checkLoss(batch, loss, this.config.valueHead);
      const sums = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
      for (const pass of passesOf(batch, trainedTokens)) {
        const metrics = this.#counted(
          () => this.#accumulate(batch, loss, pass),
          () => pass.tokens.length,
        );
        for (const name of lossMetricNames) sums[name] += metrics[name];
        await breathe();
        this.refuseReleased("forwardBackward");
      }
      return sums;
    });
  }

  logprobs(rows: TokenRows): Promise<Float32Array> {
    return this.#forward("logprobs", rows);
  }

  async values(rows: TokenRows): Promise<Float32Array> {
    requireValueHead(this.config.valueHead);
    return this.#forward("values", rows);
  }

  override async release(): Promise<void> {
    const released = super.release();
    this.#wake();
    await released;
    this.#lastBytes = this.memory().loadedBytes;
    this.#kept.clear();
    this.#loaded = undefined;
  }

  override async restore(): Promise<void> {
    await super.restore();
    this.#model();
  }

  async #generate(prompts: readonly Int32Array[], sampling: Sampling, options: GenerateOptions): Promise<Completion[]> {
    const completions: Completion[] = Array(prompts.length);
    const deliver = (finished: [number, Completion][]) => {
      for (const [index, completion] of finished) {
        completions[index] = completion;
        options.onCompletion?.(index, completion);
      }
    };
    const wake = () => this.#wake();
    const aborts = this.#aborts;
    let { changes } = this.parameters;
    /** that has chosen what is there, also where others have come since */
    let version = this.policyVersion;
    const generation = new Generation(this.config, prompts, sampling, options, this.#kept);
    options.signal?.addEventListener("abort", wake);
    this.#running.add(generation);
    let isOver = false;
    const add = (joining: JoiningCompletion) => {
      if (isOver) return undefined;
      checkPrompts([joining.prompt], {}, this.config.contextLength, this.config.vocabSize);
      checkBegun(joining, sampling, this.config.contextLength);
      return generation.join(joining);
    };
    options.join?.(add, (index) => {
      const completion = isOver ? undefined : generation.cut(index, version);
      if (!completion) return false;
      deliver([[index, completion]]);
      wake();
      return true;
    });
    try {
      while (!generation.done) {
        this.refuseReleased("generate");
        if (options.signal?.aborted) {
          throw new TreadleError("call.cancelled", "generate was cancelled by its caller", {
            cause: options.signal.reason,
          });
        }
        if (aborts !== this.#aborts) {
          deliver(generation.abort(version));
          break;
        }
        const paused = this.#gate.pass();
        if (paused) {
          await paused;
          continue;
        }
        if (changes !== this.parameters.changes) {
          generation.renew(version);
          changes = this.parameters.changes;
        }
        version = this.policyVersion;
        const step = () => generation.step(this.#model(), version);
        deliver(this.#counted(step, () => generation.numRead));
        await (generation.idle() ?? breathe());
      }
      return completions;
    } finally {
      isOver = true;
      options.signal?.removeEventListener("abort", wake);
      if (this.#loaded) generation.dispose(this.#loaded);
      this.#running.delete(generation);
    }
  }

  takeWork(): WorkSums {
    return this.#meter.take();
  }

  /** A pass, unless it has read nothing. */
  #counted<T>(compute: () => T, numTokens: () => number): T {
    const startedMs = performance.now();
    const result = compute();
    const tokens = numTokens();
    if (tokens > 0) this.#meter.add({ passes: 1, tokens, ms: performance.now() - startedMs });
    return result;
  }

  #forward(output: "logprobs" | "values", rows: TokenRows): Promise<Float32Array> {
    return this.exclusively(output, async () => {
      checkRows(rows, this.config.contextLength, this.config.vocabSize);
      const result = new Float32Array(rows.rows * rows.columns);
      const { vocabSize } = this.config;
      for (const pass of passesOf(rows, scoredTokens)) {
        const outputs = this.#counted(
          () => this.#model().score(pass),
          () => pass.tokens.length,
        );
        pass.rows.forEach((row, which) => {
          for (let t = 0; t < pass.lengths[which]!; t++) {
            const at = row * rows.columns + t + 1;
            const place = pass.starts[which]! + t;
            result[at] =
              output === "values" ? outputs.values![place]! : outputs.logprobs[place * vocabSize + rows.tokens[at]!]!;
          }
        });
        await breathe();
        this.refuseReleased(output);
      }
      return result;
    });
  }

  #accumulate(batch: TrainBatch, loss: LossSpec, pass: Pass): LossMetrics {
    const model = this.#model();
    const gradient = lossGradient(loss, batch, pass, model.forward(pass));
    this.optimiser.accumulate(model.backward(gradient.logprobs, gradient.values), 0);
    return gradient.metrics;
  }

  /** What holds the device's memory; nothing does between a release and the next use after it. */
  #model(): TransformerModel {
    this.#loaded ??= new TransformerModel(this.config, this.parameters);
    return this.#loaded;
  }

  /** Lets every running generation look around. */
  #wake(): void {
    this.#gate.wake();
    for (const generation of this.#running) generation.wake();
  }
}
