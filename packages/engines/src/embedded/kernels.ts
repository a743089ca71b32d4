import { TreadleError } from "@treadle/contracts";
import { kernelsBase64 } from "./kernels.generated.ts";

/** The types of the global of this name, which Node's own types leave out. */
declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object) => { readonly exports: Record<string, unknown> };
};

/** What `kernels/transformer.as.ts` exports; every argument is a number, pointers are in bytes. */
type Exports = Readonly<
  Record<
    | "attention"
    | "attentionBackward"
    | "embed"
    | "embedBackward"
    | "gather"
    | "logSoftmax"
    | "logSoftmaxBackward"
    | "matmul"
    | "rmsNorm"
    | "rmsNormBackward"
    | "scatter"
    | "squaredRelu"
    | "squaredReluBackward"
    | "transpose",
    (...args: number[]) => void
  >
> & { readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number } };

const pageBytes = 65_536;
const alignment = 64;

let compiled: object | undefined;

/**
 * The compiled kernels with a memory of their own. Memory grows and never shrinks: it goes back to the system when
 * nobody holds this object any more. Views are valid until the next `reserve`.
 */
export class Kernels {
  readonly call: Exports;
  #top = pageBytes;

  constructor() {
    compiled ??= new WebAssembly.Module(Buffer.from(kernelsBase64, "base64"));
    this.call = new WebAssembly.Instance(compiled).exports as Exports;
  }

  /** All of its memory. */
  get sizeBytes(): number {
    return this.call.memory.buffer.byteLength;
  }

  /** Bytes for as long as this object lives; what they hold is not said. */
  reserve(bytes: number): number {
    const pointer = this.#top;
    const top = pointer + Math.ceil(bytes / alignment) * alignment;
    const missing = top - this.sizeBytes;
    if (missing > 0) {
      try {
        this.call.memory.grow(Math.ceil(missing / pageBytes));
      } catch (cause) {
        throw new TreadleError(
          "engine.invalid-request",
          `the embedded engine needs '${top}' bytes where WebAssembly gives 4 GiB at most; use a smaller model, shorter rows or fewer at once`,
          { cause },
        );
      }
    }
    this.#top = top;
    return pointer;
  }

  floats(pointer: number, count: number): Float32Array {
    return new Float32Array(this.call.memory.buffer, pointer, count);
  }

  integers(pointer: number, count: number): Int32Array {
    return new Int32Array(this.call.memory.buffer, pointer, count);
  }
}

/** Memory that one computation after another uses, handed out from the beginning each time. */
export class Scratch {
  readonly #kernels: Kernels;
  #pointer = 0;
  #capacity = 0;
  #used = 0;

  constructor(kernels: Kernels) {
    this.#kernels = kernels;
  }

  /** Forgets what was handed out, and makes room for `words` floats or integers in `parts` parts. */
  begin(words: number, parts: number): void {
    const bytes = 4 * words + alignment * parts;
    this.#used = 0;
    if (bytes <= this.#capacity) return;
    // What is outgrown stays unused: with sizes that double, all of it together is less than what is used.
    this.#capacity = Math.max(bytes, 2 * this.#capacity);
    this.#pointer = this.#kernels.reserve(this.#capacity);
  }

  take(words: number): number {
    const pointer = this.#pointer + this.#used;
    this.#used += Math.ceil((4 * words) / alignment) * alignment;
    if (this.#used > this.#capacity) throw new Error(`scratch of ${this.#capacity} bytes cannot give ${this.#used}`);
    return pointer;
  }
}
