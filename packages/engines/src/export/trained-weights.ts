import { type CheckpointHeader, refuse } from "../checkpoint.ts";
import type { ParameterShape } from "../parameters.ts";

/** A checkpoint on a disk, whose weights are read here and there. Whoever opens it closes it. */
export interface TrainedWeights {
  readonly header: CheckpointHeader;
  shapeOf(name: string): readonly number[] | undefined;
  /** So many of a parameter's numbers from `at` on. Throws `checkpoint.corrupt` where they are not finite. */
  read(name: string, at: number, count: number): Promise<Float32Array>;
  whole(parameter: ParameterShape): Promise<Float32Array>;
  close(): Promise<void>;
}

export function refuseInfinite(name: string, at: number, numbers: Float32Array): void {
  const bad = numbers.findIndex((each) => !Number.isFinite(each));
  if (bad >= 0) refuse(`'${name}' has '${numbers[bad]}' at '${at + bad}' where finite numbers are allowed`);
}
