import { createHash } from "node:crypto";
import { TreadleError, type Weights } from "@treadle/contracts";
import { piecesOf } from "./pieces.ts";

export type ParameterShape = { readonly name: string; readonly shape: readonly number[] };

type Slot = ParameterShape & { readonly offset: number; readonly size: number };

/** The checksum covers version, names, shapes and data, so that neither stale nor mixed weights pass for others. */
export function sealWeights(weights: Omit<Weights, "checksum">): Weights {
  const hash = createHash("sha256").update(`version ${weights.policyVersion}\n`);
  for (const { name, shape, data } of weights.parameters) {
    hash.update(`${name} ${shape.join("x")}\n`);
    for (const piece of piecesOf(data)) hash.update(piece);
  }
  return { ...weights, checksum: hash.digest("hex") };
}

/** Of a model that nothing has trained, wherever it was made. */
export const initialWeightsId = "initial";

/** As `Engine.weightsId`, of weights on their way, as bytes or by a ticket. */
export const weightsIdOf = ({
  policyVersion,
  checksum,
  ticketChecksum = checksum,
}: Pick<Weights, "policyVersion" | "checksum" | "ticketChecksum">): string =>
  policyVersion === 0 ? initialWeightsId : `${policyVersion}/${ticketChecksum}`;

export const sizeOf = ({ shape }: Pick<ParameterShape, "shape">): number => shape.reduce((a, b) => a * b, 1);

/** Throws `engine.weights-mismatch` unless every name and shape and the checksum match, and every value is finite. */
export function checkWeights(layout: readonly ParameterShape[], weights: Weights): void {
  const refuse = (what: string): never => {
    throw new TreadleError(
      "engine.weights-mismatch",
      `weights of version '${weights.policyVersion}' refused: ${what}; check that both engines have one model configuration`,
      { details: { policyVersion: weights.policyVersion } },
    );
  };
  if (weights.parameters.length !== layout.length) {
    refuse(`they have '${weights.parameters.length}' parameters where the model has '${layout.length}'`);
  }
  layout.forEach((slot, index) => {
    const given = weights.parameters[index]!;
    if (given.name !== slot.name) refuse(`parameter '${index}' is '${given.name}' where the model has '${slot.name}'`);
    if (given.shape.join() !== slot.shape.join() || given.data.length !== sizeOf(slot)) {
      refuse(`'${slot.name}' has shape '${given.shape.join("x")}' where the model has '${slot.shape.join("x")}'`);
    }
  });
  const { checksum } = sealWeights(weights);
  if (checksum !== weights.checksum)
    refuse(`their checksum is '${checksum}' where '${weights.checksum}' was announced`);
  for (const { name, data } of weights.parameters) {
    const at = data.findIndex((value) => !Number.isFinite(value));
    if (at >= 0) refuse(`'${name}' has '${data[at]}' at '${at}' where finite numbers are allowed`);
  }
}

/**
 * The parameters of one model on the host, flat: what the optimiser, checkpoints and weight transfers work on. Device
 * arrays are copies, rebuilt when `changes` grew.
 */
export class Parameters {
  readonly layout: readonly Slot[];
  readonly size: number;
  readonly values: Float32Array;
  readonly #offsets: ReadonlyMap<string, number>;
  /** Grows whenever `values` was written. */
  changes = 0;

  constructor(shapes: readonly ParameterShape[], initial: (shape: ParameterShape, index: number) => Float32Array) {
    let offset = 0;
    this.layout = shapes.map(({ name, shape }) => {
      const size = sizeOf({ shape });
      const slot = { name, shape, offset, size };
      offset += size;
      return slot;
    });
    this.size = offset;
    this.#offsets = new Map(this.layout.map((slot) => [slot.name, slot.offset]));
    this.values = new Float32Array(offset);
    this.layout.forEach((slot, index) => {
      this.values.set(initial(slot, index), slot.offset);
    });
  }

  /** Where a parameter begins. */
  offsetOf(name: string): number {
    return this.#offsets.get(name)!;
  }

  export(policyVersion: number): Weights {
    const parameters = this.layout.map(({ name, shape, offset, size }) => ({
      name,
      shape,
      data: this.values.slice(offset, offset + size),
    }));
    return sealWeights({ policyVersion, parameters });
  }

  /** All or nothing: nothing changes unless every name and shape and the checksum match, and every value is finite. */
  import(weights: Weights): void {
    checkWeights(this.layout, weights);
    this.layout.forEach((slot, index) => {
      this.values.set(weights.parameters[index]!.data, slot.offset);
    });
    this.changes++;
  }
}
