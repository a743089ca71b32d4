import { type LossMetrics, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { breathe } from "../breathe.ts";
import {
  type Actions,
  type ActOptions,
  type ControlBatch,
  type ControlEngine,
  type ControlLoss,
  type EngineMemory,
  lossMetricNames,
} from "../engine.ts";
import { ModelEngine } from "../model-engine.ts";
import { mix, normal } from "../random.ts";
import {
  ActorCriticConfig,
  actorCriticShapes,
  initialActorCritic,
  layerNames,
  logDeviationName,
} from "./actor-critic-config.ts";
import type { ActorCriticDevice } from "./actor-critic-device.ts";
import { checkControlBatch, checkNumbers } from "./batches.ts";

/**
 * A small actor-critic for continuous control in this process. `act` runs on the host, for any number of rows without
 * compiling: up to about 16 rows, a simulator's usual step, it is also the faster way (README has the measurement).
 * Training is compiled. ME1, ME3 as in ModelEngine.
 */
export class ActorCriticEngine extends ModelEngine implements ControlEngine {
  override readonly kind = "embedded";
  readonly config: ActorCriticConfig;
  readonly #device: ActorCriticDevice;

  private constructor(config: ActorCriticConfig, Device: typeof ActorCriticDevice) {
    super(actorCriticShapes(config), (shape, index) => initialActorCritic(config, shape, index));
    this.config = config;
    this.#device = new Device(config, this.parameters);
  }

  /** Throws `config.invalid` with every problem. */
  static async create(config: z.input<typeof ActorCriticConfig>): Promise<ActorCriticEngine> {
    const parsed = ActorCriticConfig.safeParse(config);
    if (!parsed.success) {
      throw new TreadleError("config.invalid", `actor-critic configuration refused: ${z.prettifyError(parsed.error)}`);
    }
    // The array library takes long to load, and most processes have no use for it.
    const { ActorCriticDevice, startDevice } = await import("./actor-critic-device.ts");
    await startDevice();
    return new ActorCriticEngine(parsed.data, ActorCriticDevice);
  }

  override memory(): EngineMemory {
    return {
      ...super.memory(),
      residentBytes: this.#device.residentBytes,
      loadedBytes: this.parameters.values.byteLength,
    };
  }

  /** Compiles the training program ahead of time; accumulated gradients and parameters stay as they are. */
  async warmUp(loss: ControlLoss): Promise<void> {
    const { observationSize, actionSize } = this.config;
    const [observations, actions] = [new Float32Array(observationSize), new Float32Array(actionSize)];
    const zero = new Float32Array(1);
    const rest = { weights: zero, advantages: zero, oldLogprobs: zero, returns: zero, oldValues: zero };
    await this.forwardBackward({ rows: 1, observations, actions, ...rest }, loss);
  }

  async act(observations: Float32Array, rows: number, options: ActOptions = {}): Promise<Actions> {
    this.refuseReleased("act");
    const { observationSize, actionSize } = this.config;
    const { seeds } = options;
    checkNumbers("observations", observations, rows, observationSize);
    if (seeds) checkNumbers("seeds", seeds, rows, 1);
    const means = this.#network("actor", observations, rows);
    const values = Float32Array.from(this.#network("critic", observations, rows));
    const logDeviations = this.#parameter(logDeviationName);
    const actions = new Float32Array(rows * actionSize);
    const logprobs = new Float32Array(rows);
    const stream = mix(options.seed ?? 0);
    for (let row = 0; row < rows; row++) {
      const [rowStream, place] = seeds ? [mix(seeds[row]!), 0] : [stream, row];
      let logprob = 0;
      for (let i = 0; i < actionSize; i++) {
        const noise = options.greedy ? 0 : normal(rowStream, place, i);
        const logDeviation = logDeviations[i]!;
        actions[row * actionSize + i] = means[row * actionSize + i]! + noise * Math.exp(logDeviation);
        logprob -= 0.5 * (noise * noise + Math.log(2 * Math.PI)) + logDeviation;
      }
      logprobs[row] = logprob;
    }
    return { actions, logprobs, values };
  }

  forwardBackward(batch: ControlBatch, loss: ControlLoss): Promise<LossMetrics> {
    return this.exclusively("forwardBackward", async () => {
      const { observationSize, actionSize, microBatchRows } = this.config;
      checkControlBatch(batch, observationSize, actionSize);
      const offsets = new Map(this.parameters.layout.map(({ name, offset }) => [name, offset]));
      const sums = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
      for (let first = 0; first < batch.rows; first += microBatchRows) {
        const cut = (values: Float32Array, width: number) => {
          const part = new Float32Array(microBatchRows * width);
          const last = Math.min(batch.rows, first + microBatchRows);
          part.set(values.subarray(first * width, last * width));
          // A weight of 0 times NaN is NaN, and what stands at such a row is never used.
          for (let row = first; row < last; row++) {
            if (batch.weights[row] === 0) part.fill(0, (row - first) * width, (row - first + 1) * width);
          }
          return part;
        };
        const rows = {
          rows: microBatchRows,
          observations: cut(batch.observations, observationSize),
          actions: cut(batch.actions, actionSize),
          weights: cut(batch.weights, 1),
          advantages: cut(batch.advantages, 1),
          oldLogprobs: cut(batch.oldLogprobs, 1),
          returns: cut(batch.returns, 1),
          oldValues: cut(batch.oldValues, 1),
        };
        const { metrics: measured, gradients } = this.#device.differentiate(rows, loss);
        for (const [name, gradient] of gradients) this.optimiser.accumulate(gradient, offsets.get(name)!);
        lossMetricNames.forEach((name, i) => {
          sums[name] += measured[i]!;
        });
        await breathe();
        this.refuseReleased("forwardBackward");
      }
      return sums;
    });
  }

  override async release(): Promise<void> {
    await super.release();
    this.#device.drop();
  }

  override async restore(): Promise<void> {
    await super.restore();
    this.#device.load();
  }

  override async close(): Promise<void> {
    await super.close();
    this.#device.close();
  }

  #parameter(name: string): Float32Array {
    const { offset, size } = this.parameters.layout.find((slot) => slot.name === name)!;
    return this.parameters.values.subarray(offset, offset + size);
  }

  /** The outputs `[rows, outputs]` of one network on the host. */
  #network(name: "actor" | "critic", observations: Float32Array, rows: number): Float64Array {
    let x: Float64Array = Float64Array.from(observations);
    const layers = layerNames(name, this.config);
    layers.forEach(([matrixName, biasName], layer) => {
      const matrix = this.#parameter(matrixName);
      const bias = this.#parameter(biasName);
      const outputs = bias.length;
      const inputs = matrix.length / outputs;
      const last = layer === layers.length - 1;
      const y = new Float64Array(rows * outputs);
      const blocked = outputs - (outputs % 4);
      for (let row = 0; row < rows; row++) {
        const from = row * inputs;
        const to = row * outputs;
        for (let j = 0; j < blocked; j += 4) {
          // Four sums at once stay in registers.
          let a = bias[j]!;
          let b = bias[j + 1]!;
          let c = bias[j + 2]!;
          let d = bias[j + 3]!;
          for (let i = 0, at = j; i < inputs; i++, at += outputs) {
            const value = x[from + i]!;
            a += value * matrix[at]!;
            b += value * matrix[at + 1]!;
            c += value * matrix[at + 2]!;
            d += value * matrix[at + 3]!;
          }
          y[to + j] = a;
          y[to + j + 1] = b;
          y[to + j + 2] = c;
          y[to + j + 3] = d;
        }
        for (let j = blocked; j < outputs; j++) {
          let sum = bias[j]!;
          for (let i = 0, at = j; i < inputs; i++, at += outputs) sum += x[from + i]! * matrix[at]!;
          y[to + j] = sum;
        }
      }
      if (!last) for (let i = 0; i < y.length; i++) y[i] = Math.tanh(y[i]!);
      x = y;
    });
    return x;
  }
}
