import { defaultDevice, init, numpy as np } from "@jax-js/jax";
import { TreadleError } from "@treadle/contracts";
import type { Parameters } from "../parameters.ts";

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

export function floats(data: Float32Array, shape: readonly number[]): np.Array {
  return np.array(data, { shape: [...shape], dtype: np.float32 });
}

/** Lets timers, sockets and cancellations through between two pieces of synchronous work. */
export function breathe(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Device arrays by name. Compiled programs consume their arguments: pass `references(tree)` to keep it. */
export type Tree = { [name: string]: np.Array };

export function references(tree: Tree): Tree {
  const copy: Tree = {};
  for (const name in tree) copy[name] = tree[name]!.ref;
  return copy;
}

export function dispose(tree: Tree): void {
  for (const name in tree) tree[name]!.dispose();
}

/**
 * The device's copy of a model's parameters, rebuilt when the host's changed: for models this small the upload costs
 * less than a compiled optimiser would.
 */
export class DeviceParameters {
  readonly #host: Parameters;
  #tree: Tree | undefined;
  #changes = -1;

  constructor(host: Parameters) {
    this.#host = host;
  }

  get residentBytes(): number {
    return this.#tree ? this.#host.values.byteLength : 0;
  }

  /** Owned here. */
  tree(): Tree {
    if (this.#tree && this.#changes === this.#host.changes) return this.#tree;
    this.drop();
    this.#tree = {};
    this.#changes = this.#host.changes;
    for (const { name, shape, offset, size } of this.#host.layout) {
      this.#tree[name] = floats(this.#host.values.subarray(offset, offset + size), shape);
    }
    return this.#tree;
  }

  drop(): void {
    if (this.#tree) dispose(this.#tree);
    this.#tree = undefined;
  }
}
