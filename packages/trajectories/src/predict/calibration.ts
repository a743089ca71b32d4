import { z } from "zod";
import { stages } from "./progress.ts";

/** By stage, the last errors that a model made before it learned their outcome. */
export const CalibrationState = z.array(z.array(z.number())).length(stages.length);
export type CalibrationState = z.infer<typeof CalibrationState>;

export const emptyCalibration: CalibrationState = stages.map(() => []);

const mostErrors = 400;
const fewestErrors = 20;
/** of a normal distribution, the standard deviations within which 80 % lie */
const within80 = 1.2815515655446004;
/** before anything was learned */
const unknownSd = 1;

/** The log-sd with which an interval covers 80 % of what came, whatever the errors' shape, by stage. */
export class Calibration {
  readonly #errors: number[][];
  readonly #sds: (number | undefined)[] = [];
  readonly #meanSquares: (number | undefined)[] = [];

  constructor(state: CalibrationState) {
    this.#errors = state.map((errors) => [...errors]);
  }

  get state(): CalibrationState {
    return this.#errors.map((errors) => [...errors]);
  }

  learn(stage: number, error: number): void {
    const errors = this.#errors[stage]!;
    errors.push(error);
    if (errors.length > mostErrors) errors.shift();
    this.#sds.length = 0;
    this.#meanSquares.length = 0;
  }

  /** Root of the mean squared error; undefined until there are enough. */
  rootMeanSquare(stage: number): number | undefined {
    const errors = this.#errors[stage]!;
    if (errors.length < fewestErrors) return undefined;
    this.#meanSquares[stage] ??= errors.reduce((sum, error) => sum + error ** 2, 0) / errors.length;
    return Math.sqrt(this.#meanSquares[stage]);
  }

  logSd(stage: number): number {
    this.#sds[stage] ??= this.#quantile(stage);
    return this.#sds[stage];
  }

  #quantile(stage: number): number {
    const own = this.#errors[stage]!;
    const errors = own.length >= fewestErrors ? own : this.#errors.flat();
    if (errors.length < fewestErrors) return unknownSd;
    const sizes = errors.map(Math.abs).sort((a, b) => a - b);
    return Math.max(1e-3, sizes[Math.ceil(0.8 * sizes.length) - 1]! / within80);
  }
}
