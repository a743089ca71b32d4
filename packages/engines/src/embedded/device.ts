import { defaultDevice, init, numpy as np } from "@jax-js/jax";
import { TreadleError } from "@treadle/contracts";

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

export function integers(data: Int32Array, shape: readonly number[]): np.Array {
  return np.array(data, { shape: [...shape], dtype: np.int32 });
}

/** Lets timers, sockets and cancellations through between two pieces of synchronous work. */
export function breathe(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

export function invalidRequest(message: string): TreadleError {
  return new TreadleError("engine.invalid-request", message);
}
