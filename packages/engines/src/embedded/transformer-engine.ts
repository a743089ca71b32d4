import {
  type Completion,
  type LossMetrics,
  type LossSpec,
  Sampling,
  type TrainBatch,
  TreadleError,
} from "@treadle/contracts";
import { z } from "zod";
import {
  type EngineMemory,
  type GenerateOptions,
  type GenerationEngine,
  lossMetricNames,
  type TokenRows,
  type TrainingEngine,
} from "../engine.ts";
import { invalidRequest, ModelEngine } from "../model-engine.ts";
import { checkArrays, checkRows, microBatches } from "./batches.ts";
import { breathe, DeviceParameters, startDevice } from "./device.ts";
import { Gate } from "./gate.ts";
import { bucketFor, Generation } from "./generation.ts";
import { initialTransformer, TransformerConfig, transformerShapes } from "./transformer-config.ts";
import { TransformerPrograms } from "./transformer-programs.ts";

/** What `warmUp` compiles; omitted parts stay uncompiled until first used. */
export type WarmUp = {
  /** Numbers of prompts that will be generated at once; `distinct` when groups of them are equal. */
  readonly prompts?: readonly { readonly count: number; readonly distinct?: number }[];
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
  readonly #calls = new Set<Promise<unknown>>();
  readonly #running = new Set<Generation>();
  #aborts = 0;

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
    const cacheBytes = [...this.#running].reduce((sum, generation) => sum + generation.cacheBytes, 0);
    return { ...super.memory(), residentBytes: this.#device.residentBytes + cacheBytes };
  }

  /** Compiles ahead of time; accumulated gradients and parameters stay as they are. */
  async warmUp(shapes: WarmUp): Promise<void> {
    this.refuseReleased("warmUp");
    for (const { count, distinct = count } of shapes.prompts ?? []) {
      const buckets = [bucketFor(this.#slotBuckets, count), bucketFor(this.#slotBuckets, distinct)] as const;
      this.#programs.warmUpDecoding(this.#device.tree(), ...buckets);
      await breathe();
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
    this.#calls.add(running);
    try {
      return await running;
    } finally {
      this.#calls.delete(running);
    }
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
      const present = { old: batch.oldLogprobs !== undefined, ref: batch.refLogprobs !== undefined };
      if (loss.type === "policy-gradient") {
        if (!batch.advantages) throw invalidRequest("a policy-gradient batch has no 'advantages'; compute them first");
        if (loss.klCoefficient > 0 && !present.ref) {
          throw invalidRequest(
            `klCoefficient is '${loss.klCoefficient}' and the batch has no 'refLogprobs'; score it with the reference model or set the coefficient to 0`,
          );
        }
        if (loss.value) {
          this.#requireValueHead();
          if (!batch.returns || !batch.oldValues) {
            throw invalidRequest(
              "the loss trains values and the batch has no 'returns' or 'oldValues'; estimate advantages with a critic first",
            );
          }
        }
      }
      const sums = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
      const offsets = new Map(this.parameters.layout.map(({ name, offset }) => [name, offset]));
      for (const part of microBatches(batch, this.config.microBatchRows, this.#columns(batch.columns))) {
        const metrics = this.#programs.gradients(this.#device.tree(), part, loss, present, (name, gradient) =>
          this.optimiser.accumulate(gradient, offsets.get(name)!),
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
    this.#requireValueHead();
    return this.#forward("values", rows);
  }

  override async release(): Promise<void> {
    const released = super.release();
    this.#wake();
    await Promise.allSettled([released, ...this.#calls]);
    this.#device.drop();
  }

  override async restore(): Promise<void> {
    await super.restore();
    this.#device.tree();
  }

  override async close(): Promise<void> {
    await super.close();
    this.#programs.dispose();
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
    options.signal?.addEventListener("abort", wake);
    const aborts = this.#aborts;
    let changes = this.parameters.changes;
    const generation = new Generation(
      this.#programs,
      this.config,
      this.#slotBuckets,
      prompts,
      sampling,
      options.extend,
    );
    this.#running.add(generation);
    try {
      while (!generation.done) {
        this.refuseReleased("generate");
        if (options.signal?.aborted) {
          throw new TreadleError("call.cancelled", "generate was cancelled by its caller", {
            cause: options.signal.reason,
          });
        }
        if (aborts !== this.#aborts) {
          deliver(generation.abort(this.policyVersion));
          break;
        }
        const paused = this.#gate.pass();
        if (paused) {
          await paused;
          continue;
        }
        if (changes !== this.parameters.changes) {
          generation.restart();
          changes = this.parameters.changes;
        }
        deliver(generation.step(this.#device.tree(), this.policyVersion));
        await (generation.idle() ?? breathe());
      }
      return completions;
    } finally {
      options.signal?.removeEventListener("abort", wake);
      generation.dispose();
      this.#running.delete(generation);
    }
  }

  #forward(output: "logprobs" | "values", rows: TokenRows): Promise<Float32Array> {
    return this.exclusively(output, async () => {
      checkRows(rows, this.config.contextLength, this.config.vocabSize);
      const result = new Float32Array(rows.rows * rows.columns);
      const predictions = rows.columns - 1;
      for (const part of microBatches(rows, this.config.microBatchRows, this.#columns(rows.columns))) {
        const all = this.#programs[output](this.#device.tree(), part);
        for (let row = 0; row < part.realRows; row++) {
          const real = all.subarray(row * part.columns, row * part.columns + predictions);
          result.set(real, (part.firstRow + row) * rows.columns + 1);
        }
        await breathe();
        this.refuseReleased(output);
      }
      return result;
    });
  }

  #requireValueHead(): void {
    if (this.config.valueHead) return;
    throw invalidRequest("the model has no value head where values were asked for; set valueHead in its configuration");
  }

  /** Lets every running generation look around. */
  #wake(): void {
    this.#gate.wake();
    for (const generation of this.#running) generation.wake();
  }

  #columns(columns: number): number {
    return this.#columnBuckets.find((bucket) => bucket >= columns)! - 1;
  }
}
