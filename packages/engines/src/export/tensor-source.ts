import { type ParameterShape, sizeOf } from "../parameters.ts";

/** A tensor that is read in pieces. */
export type TensorSource = ParameterShape & {
  readonly read: (start: number, count: number) => Promise<Float32Array>;
  /** once it was read to its end */
  readonly release?: () => void;
};

const pieceNumbers = 2 ** 20;

export async function* piecesOfTensor({ shape, read, release }: TensorSource): AsyncGenerator<Float32Array> {
  const size = sizeOf({ shape });
  for (let at = 0; at < size; at += pieceNumbers) yield await read(at, Math.min(pieceNumbers, size - at));
  release?.();
}
