import { createHash } from "node:crypto";
import { numpy as np } from "@jax-js/jax";
import { TreadleError, type Weights } from "@treadle/contracts";

export type ParameterShape = { readonly name: string; readonly shape: readonly number[] };
export type Tree = { [name: string]: np.Array };

type Slot = ParameterShape & { readonly offset: number; readonly size: number };

/** A reference to every array, for a call that consumes its arguments. */
export function references(tree: Tree): Tree {
  const copy: Tree = {};
  for (const name in tree) copy[name] = tree[name]!.ref;
  return copy;
}

export function dispose(tree: Tree): void {
  for (const name in tree) tree[name]!.dispose();
}

/** The checksum covers version, names, shapes and data, so that neither stale nor mixed weights pass for others. */
export function sealWeights(weights: Omit<Weights, "checksum">): Weights {
  const hash = createHash("sha256").update(`version ${weights.policyVersion}\n`);
  for (const { name, shape, data } of weights.parameters) {
    hash.update(`${name} ${shape.join("x")}\n`).update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  return { ...weights, checksum: hash.digest("hex") };
}

/**
 * The parameters of one embedded model. The host's flat array is the master: the optimiser, checkpoints and weight
 * transfers work on it; the device arrays are a copy for compiled programs, rebuilt when the master changed. For models
 * this small the upload costs less than keeping the optimiser's own compiled programs.
 */
export class Parameters {
  readonly layout: readonly Slot[];
  readonly size: number;
  readonly values: Float32Array;
  #device: Tree | undefined;

  constructor(shapes: readonly ParameterShape[], initial: (shape: ParameterShape, index: number) => Float32Array) {
    let offset = 0;
    this.layout = shapes.map(({ name, shape }) => {
      const size = shape.reduce((a, b) => a * b, 1);
      const slot = { name, shape, offset, size };
      offset += size;
      return slot;
    });
    this.size = offset;
    this.values = new Float32Array(offset);
    this.layout.forEach((slot, index) => {
      this.values.set(initial(slot, index), slot.offset);
    });
  }

  get residentBytes(): number {
    return this.#device ? this.values.byteLength : 0;
  }

  /** The device arrays, still owned here: pass `references(...)` to a compiled program. */
  device(): Tree {
    if (!this.#device) {
      this.#device = {};
      for (const { name, shape, offset, size } of this.layout) {
        this.#device[name] = np.array(this.values.slice(offset, offset + size), { shape: [...shape] });
      }
    }
    return this.#device;
  }

  /** Drops the device arrays: after the master changed, and on release. */
  drop(): void {
    if (this.#device) dispose(this.#device);
    this.#device = undefined;
  }

  export(policyVersion: number): Weights {
    const parameters = this.layout.map(({ name, shape, offset, size }) => ({
      name,
      shape,
      data: this.values.slice(offset, offset + size),
    }));
    return sealWeights({ policyVersion, parameters });
  }

  /** All or nothing: nothing changes unless every name and shape and the checksum match. */
  import(weights: Weights): void {
    const refuse = (what: string): never => {
      throw new TreadleError(
        "engine.weights-mismatch",
        `weights of version '${weights.policyVersion}' refused: ${what}; check that both engines have one model configuration`,
        { details: { policyVersion: weights.policyVersion } },
      );
    };
    if (weights.parameters.length !== this.layout.length) {
      refuse(`they have '${weights.parameters.length}' parameters where the model has '${this.layout.length}'`);
    }
    this.layout.forEach((slot, index) => {
      const given = weights.parameters[index]!;
      if (given.name !== slot.name)
        refuse(`parameter '${index}' is '${given.name}' where the model has '${slot.name}'`);
      if (given.shape.join() !== slot.shape.join() || given.data.length !== slot.size) {
        refuse(`'${slot.name}' has shape '${given.shape.join("x")}' where the model has '${slot.shape.join("x")}'`);
      }
    });
    const { checksum } = sealWeights(weights);
    if (checksum !== weights.checksum)
      refuse(`their checksum is '${checksum}' where '${weights.checksum}' was announced`);
    this.layout.forEach((slot, index) => {
      this.values.set(weights.parameters[index]!.data, slot.offset);
    });
    this.drop();
  }
}
