import {
  type Completion,
  type LossMetrics,
  type LossSpec,
  Sampling,
  type TrainBatch,
  TreadleError,
} from "@treadle/contracts";
import { z } from "zod";
import type { EngineMemory, GenerateOptions, GenerationEngine, TokenRows, TrainingEngine } from "../engine.ts";
import { invalidRequest, ModelEngine } from "../model-engine.ts";
import { checkArrays, checkRows, microBatches } from "./batches.ts";
import { breathe, DeviceParameters, startDevice } from "./device.ts";
import { Gate } from "./gate.ts";
import { metricNames } from "./policy-loss.ts";
import { Slots } from "./slots.ts";
import { initialTransformer, TransformerConfig, transformerShapes } from "./transformer-config.ts";
import { disposeCache, TransformerPrograms } from "./transformer-programs.ts";

/** What `warmUp` compiles; omitted parts stay uncompiled until first used. */
export type WarmUp = {
  /** Numbers of prompts that will be generated at once. */
  readonly prompts?: readonly number[];
  /** Columns of the batches that will be scored by `logprobs`. */
  readonly logprobColumns?: readonly number[];
  /** Losses that will be trained, with the columns of their batches and the arrays these have. */
  readonly losses?: readonly {
    readonly loss: LossSpec;
    readonly columns: number;
    readonly oldLogprobs?: boolean;
    readonly refLogprobs?: boolean;
  }[];
};

/**
 * A small transformer in this process, for generation and training.
 *
 * Owns its parameters and device arrays; nobody else touches them. Every computation is synchronous between two turns
 * of the event loop: one position of all slots, or one micro-batch.
 * E1 what reads or writes parameters across several turns (training, scoring, loading) runs one call after another.
 * E2 generations run beside them and beside each other; parameters change only between two of their tokens, and then
 *    they start over from their prompts (W3, G3).
 * E3 a released engine holds no device array; calls that were running throw `engine.released` at their next turn.
 */
export class TransformerEngine extends ModelEngine implements GenerationEngine, TrainingEngine {
  readonly config: TransformerConfig;
  readonly #device: DeviceParameters;
  readonly #programs: TransformerPrograms;
  readonly #gate = new Gate();
  readonly #columnBuckets: readonly number[];
  readonly #slotBuckets: readonly number[];
  readonly #generations = new Set<Promise<unknown>>();
  #aborts = 0;
  #cacheBytes = 0;

  private constructor(config: TransformerConfig) {
    super(transformerShapes(config), (shape, index) => initialTransformer(config, shape, index));
    this.config = config;
    const ascending = (values: readonly number[]) => [...values].sort((a, b) => a - b);
    this.#columnBuckets = ascending([
      ...(config.columnBuckets ?? []).filter((n) => n < config.contextLength),
      config.contextLength,
    ]);
    this.#slotBuckets = ascending(config.slotBuckets);
    this.#device = new DeviceParameters(this.parameters);
    this.#programs = new TransformerPrograms(config);
  }

  /** Throws `config.invalid` with every problem. Programs compile on first use, or in `warmUp`. */
  static async create(config: z.input<typeof TransformerConfig>): Promise<TransformerEngine> {
    const parsed = TransformerConfig.safeParse(config);
    if (!parsed.success) {
      throw new TreadleError("config.invalid", `transformer configuration refused: ${z.prettifyError(parsed.error)}`);
    }
    await startDevice();
    return new TransformerEngine(parsed.data);
  }

  override memory(): EngineMemory {
    return { ...super.memory(), residentBytes: this.#device.residentBytes + this.#cacheBytes };
  }

  /** Compiles ahead of time; accumulated gradients and parameters stay as they are. */
  async warmUp(shapes: WarmUp): Promise<void> {
    for (const prompts of shapes.prompts ?? []) {
      const prompt = Int32Array.of(0);
      await this.generate(Array(prompts).fill(prompt), { maxTokens: 1, temperature: 0, stopTokens: [], seed: 0 });
    }
    for (const columns of shapes.logprobColumns ?? []) {
      await this.logprobs({ rows: 1, columns, tokens: new Int32Array(columns) });
    }
    for (const { loss, columns, oldLogprobs = false, refLogprobs = false } of shapes.losses ?? []) {
      const zeros = () => new Float32Array(columns);
      const batch = { rows: 1, columns, tokens: new Int32Array(columns), weights: zeros(), advantages: zeros() };
      const optional = { ...(oldLogprobs && { oldLogprobs: zeros() }), ...(refLogprobs && { refLogprobs: zeros() }) };
      await this.forwardBackward({ ...batch, ...optional }, loss);
    }
  }

  async generate(
    prompts: readonly Int32Array[],
    sampling: Sampling,
    options: GenerateOptions = {},
  ): Promise<Completion[]> {
    this.refuseReleased("generate");
    const { contextLength, vocabSize } = this.config;
    const resolved = Sampling.parse(sampling);
    for (const tokens of prompts) {
      if (tokens.length === 0)
        throw invalidRequest("a prompt has '0' tokens where at least one was expected; start prompts with a token");
      checkRows({ rows: 1, columns: tokens.length, tokens }, contextLength - 1, vocabSize);
    }
    const running = this.#generate(prompts, resolved, options);
    this.#generations.add(running);
    try {
      return await running;
    } finally {
      this.#generations.delete(running);
    }
  }

  abort(): void {
    this.#aborts++;
    this.#gate.wake();
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
      const present = { old: batch.oldLogprobs !== undefined, ref: batch.refLogprobs !== undefined };
      if (loss.type === "policy-gradient") {
        if (!batch.advantages) throw invalidRequest("a policy-gradient batch has no 'advantages'; compute them first");
        if (loss.klCoefficient > 0 && !present.ref) {
          throw invalidRequest(
            `klCoefficient is '${loss.klCoefficient}' and the batch has no 'refLogprobs'; score it with the reference model or set the coefficient to 0`,
          );
        }
      }
      const sums = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0 };
      const offsets = new Map(this.parameters.layout.map(({ name, offset }) => [name, offset]));
      for (const part of microBatches(batch, this.config.microBatchRows, this.#columns(batch.columns))) {
        const metrics = this.#programs.gradients(this.#device.tree(), part, loss, present, (name, gradient) =>
          this.optimiser.accumulate(gradient, offsets.get(name)!),
        );
        for (const name of metricNames) sums[name] += metrics[name];
        await breathe();
        this.refuseReleased("forwardBackward");
      }
      return sums;
    });
  }

  logprobs(rows: TokenRows): Promise<Float32Array> {
    return this.exclusively("logprobs", async () => {
      checkRows(rows, this.config.contextLength, this.config.vocabSize);
      const result = new Float32Array(rows.rows * rows.columns);
      const predictions = rows.columns - 1;
      for (const part of microBatches(rows, this.config.microBatchRows, this.#columns(rows.columns))) {
        const chosen = this.#programs.logprobs(this.#device.tree(), part);
        for (let row = 0; row < part.realRows; row++) {
          const values = chosen.subarray(row * part.columns, row * part.columns + predictions);
          result.set(values, (part.firstRow + row) * rows.columns + 1);
        }
        await breathe();
        this.refuseReleased("logprobs");
      }
      return result;
    });
  }

  override async release(): Promise<void> {
    const released = super.release();
    this.#gate.wake();
    await Promise.allSettled([released, ...this.#generations]);
    this.#device.drop();
  }

  override async restore(): Promise<void> {
    await super.restore();
    this.#device.tree();
  }

  /** Frees the compiled programs as well; the engine is not used again. */
  async close(): Promise<void> {
    await this.release();
    this.#programs.dispose();
  }

  async #generate(prompts: readonly Int32Array[], sampling: Sampling, options: GenerateOptions): Promise<Completion[]> {
    const completions: Completion[] = Array(prompts.length);
    const size = this.#slotBuckets.find((bucket) => bucket >= prompts.length) ?? this.#slotBuckets.at(-1)!;
    const slots = new Slots(size, prompts, sampling, this.config.contextLength);
    const tokens = new Int32Array(size);
    const positions = new Int32Array(size);
    const deliver = (finished: [number, Completion][]) => {
      for (const [index, completion] of finished) {
        completions[index] = completion;
        options.onCompletion?.(index, completion);
      }
    };
    const wake = () => this.#gate.wake();
    options.signal?.addEventListener("abort", wake);
    const aborts = this.#aborts;
    let changes = this.parameters.changes;
    let cache = this.#programs.emptyCache(size);
    const cacheBytes = 2 * 4 * size * this.config.layers * this.config.contextLength * this.config.width;
    this.#cacheBytes += cacheBytes;
    try {
      while (!slots.done) {
        this.refuseReleased("generate");
        if (options.signal?.aborted) {
          throw new TreadleError("call.cancelled", "generate was cancelled by its caller", {
            cause: options.signal.reason,
          });
        }
        if (aborts !== this.#aborts) {
          deliver(slots.abort(this.policyVersion));
          break;
        }
        const paused = this.#gate.pass();
        if (paused) {
          await paused;
          continue;
        }
        if (changes !== this.parameters.changes) {
          slots.restart();
          changes = this.parameters.changes;
        }
        slots.feed(tokens, positions);
        const [logprobs, next] = this.#programs.decode(this.#device.tree(), tokens, positions, cache);
        cache = next;
        deliver(slots.advance(logprobs, this.policyVersion));
        await breathe();
      }
      return completions;
    } finally {
      options.signal?.removeEventListener("abort", wake);
      disposeCache(cache);
      this.#cacheBytes -= cacheBytes;
    }
  }

  #columns(columns: number): number {
    return this.#columnBuckets.find((bucket) => bucket >= columns)! - 1;
  }
}
