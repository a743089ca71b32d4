/**
 * The compiled half of the actor-critic: its parameters as device arrays, and the program of its gradients. The only module,
 * with the loss that it compiles, that needs the array library, so it is loaded where an actor-critic is made.
 */
import { defaultDevice, init, jit, numpy as np, type OwnedFunction, valueAndGrad } from "@jax-js/jax";
import { TreadleError } from "@treadle/contracts";
import type { ControlBatch, ControlLoss } from "../engine.ts";
import type { Parameters } from "../parameters.ts";
import type { ActorCriticConfig } from "./actor-critic-config.ts";
import { type ControlInputs, controlCoefficients, controlLoss, type Tree } from "./actor-critic-loss.ts";

type GradientProgram = OwnedFunction<(parameters: Tree, inputs: ControlInputs) => [[np.Array, np.Array], Tree]>;

let ready: Promise<void> | undefined;

/** Starts the array library's WebAssembly backend once a process; single-threaded, one process uses one core. */
export function startDevice(): Promise<void> {
  ready ??= init("wasm").then((devices) => {
    if (!devices.includes("wasm")) {
      throw new TreadleError(
        "engine.invalid-request",
        "WebAssembly is not available in this process; embedded engines need it",
      );
    }
    defaultDevice("wasm");
  });
  return ready;
}

export class ActorCriticDevice {
  readonly #config: ActorCriticConfig;
  readonly #host: Parameters;
  readonly #programs = new Map<boolean, GradientProgram>();
  #tree: Tree | undefined;
  #changes = -1;

  constructor(config: ActorCriticConfig, host: Parameters) {
    this.#config = config;
    this.#host = host;
  }

  get residentBytes(): number {
    return this.#tree ? this.#host.values.byteLength : 0;
  }

  /** Rebuilt when the host's parameters changed: for models this small the upload costs less than a compiled optimiser would. */
  load(): void {
    if (this.#tree && this.#changes === this.#host.changes) return;
    this.drop();
    this.#changes = this.#host.changes;
    this.#tree = Object.fromEntries(
      this.#host.layout.map(({ name, shape, offset, size }) => [
        name,
        floats(this.#host.values.subarray(offset, offset + size), shape),
      ]),
    );
  }

  /** Summed over the rows: the metrics in the order of `lossMetricNames`, and each parameter's gradient by name. */
  differentiate(
    batch: ControlBatch,
    loss: ControlLoss,
  ): { readonly metrics: ArrayLike<number>; readonly gradients: readonly (readonly [string, Float32Array])[] } {
    const { observationSize, actionSize } = this.#config;
    const { rows } = batch;
    this.load();
    const program = this.#program(loss.valueClip !== undefined);
    const [[value, metrics], gradients] = program(references(this.#tree ?? {}), {
      observations: floats(batch.observations, [rows, observationSize]),
      actions: floats(batch.actions, [rows, actionSize]),
      weights: floats(batch.weights, [rows]),
      advantages: floats(batch.advantages, [rows]),
      oldLogprobs: floats(batch.oldLogprobs, [rows]),
      returns: floats(batch.returns, [rows]),
      oldValues: floats(batch.oldValues, [rows]),
      coefficients: floats(controlCoefficients(loss), [5]),
    });
    value.dispose();
    return {
      gradients: Object.entries(gradients).map(([name, gradient]) => [name, gradient.dataSync() as Float32Array]),
      metrics: metrics.dataSync(),
    };
  }

  drop(): void {
    for (const array of Object.values(this.#tree ?? {})) array.dispose();
    this.#tree = undefined;
  }

  close(): void {
    for (const program of this.#programs.values()) program.dispose();
    this.#programs.clear();
  }

  #program(clipValues: boolean): GradientProgram {
    const known = this.#programs.get(clipValues);
    if (known) return known;
    const evaluate = (parameters: Tree, inputs: ControlInputs) =>
      controlLoss(this.#config, clipValues, parameters, inputs);
    const program = jit(valueAndGrad(evaluate, { hasAux: true })) as unknown as GradientProgram;
    this.#programs.set(clipValues, program);
    return program;
  }
}

function floats(data: Float32Array, shape: readonly number[]): np.Array {
  return np.array(data, { shape: [...shape], dtype: np.float32 });
}

/** Compiled programs consume their arguments; these references do not end with the call. */
function references(tree: Tree): Tree {
  return Object.fromEntries(Object.entries(tree).map(([name, array]) => [name, array.ref]));
}
