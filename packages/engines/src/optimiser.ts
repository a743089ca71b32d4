import { TreadleError } from "@treadle/contracts";
import type { OptimStep } from "./engine.ts";
import type { Parameters } from "./parameters.ts";

/** Its square is finite in float32; a second moment that is not would stop its parameter for good. */
const largestGradNorm = 1e19;

/** Weights are float32: what is larger is no number there. */
const largestFloat32 = (2 - 2 ** -23) * 2 ** 127;

/** Accumulated gradients and AdamW's moments of one model, flat in the layout of its parameters. */
export class Optimiser {
  readonly #parameters: Parameters;
  readonly #decayed: Uint8Array;
  /** Sums of many micro-batches: in float64, so the order and the split of a batch leave no trace. */
  readonly #gradients: Float64Array;
  readonly first: Float32Array;
  readonly second: Float32Array;
  steps = 0;

  constructor(parameters: Parameters) {
    this.#parameters = parameters;
    this.#gradients = new Float64Array(parameters.size);
    this.first = new Float32Array(parameters.size);
    this.second = new Float32Array(parameters.size);
    this.#decayed = new Uint8Array(parameters.size);
    for (const { shape, offset, size } of parameters.layout) {
      if (shape.length > 1) this.#decayed.fill(1, offset, offset + size);
    }
  }

  get hostBytes(): number {
    return this.#gradients.byteLength + this.first.byteLength + this.second.byteLength;
  }

  accumulate(gradients: ArrayLike<number>, offset: number): void {
    const sums = this.#gradients;
    for (let i = 0; i < gradients.length; i++) sums[offset + i]! += gradients[i]!;
  }

  gradients(): Float32Array {
    return Float32Array.from(this.#gradients);
  }

  setGradients(gradients: Float32Array): void {
    if (gradients.length !== this.#gradients.length) {
      throw new TreadleError(
        "engine.invalid-request",
        `gradients have '${gradients.length}' entries where the model has '${this.#gradients.length}' parameters; sum those of the same model`,
      );
    }
    this.#gradients.set(gradients);
  }

  zero(): void {
    this.#gradients.fill(0);
  }

  step(options: OptimStep): { gradNorm: number } {
    const resolved = resolveStep(options);
    checkStep(resolved);
    const { learningRate, scale, maxGradNorm, beta1, beta2, epsilon, weightDecay } = resolved;
    const { values } = this.#parameters;
    const gradients = this.#gradients;
    let squares = 0;
    for (let i = 0; i < gradients.length; i++) squares += gradients[i]! * gradients[i]!;
    const gradNorm = Math.sqrt(squares) * Math.abs(scale);
    if (!Number.isFinite(gradNorm)) {
      throw new TreadleError(
        "engine.diverged",
        `the gradient's norm is '${gradNorm}' where a finite one was expected; lower the learning rate or bound the gradient's norm`,
      );
    }
    const factor = scale * Math.min(1, maxGradNorm / Math.max(gradNorm, Number.MIN_VALUE));
    if (Math.min(gradNorm, maxGradNorm) > largestGradNorm) {
      throw new TreadleError(
        "engine.diverged",
        `the gradient's norm is '${gradNorm}' where at most ${largestGradNorm} was expected, whose square Adam can keep in float32; set maxGradNorm, or lower the learning rate`,
      );
    }
    const steps = this.steps + 1;
    const firstScale = learningRate / (1 - beta1 ** steps);
    const secondScale = 1 / (1 - beta2 ** steps);
    const { first, second } = this;
    const firstAfter = (i: number) => beta1 * first[i]! + (1 - beta1) * gradients[i]! * factor;
    const secondAfter = (i: number) => beta2 * second[i]! + (1 - beta2) * (gradients[i]! * factor) ** 2;
    const valueAfter = (i: number, m: number, v: number) => {
      const decay = this.#decayed[i] === 1 ? learningRate * weightDecay * values[i]! : 0;
      return values[i]! - ((firstScale * m) / (Math.sqrt(v * secondScale) + epsilon) + decay);
    };
    // All weights are looked at before the first is written: a step is taken as a whole or not at all.
    for (let i = 0; i < values.length; i++) {
      const value = valueAfter(i, firstAfter(i), secondAfter(i));
      if (Math.abs(value) <= largestFloat32) continue;
      throw new TreadleError(
        "engine.diverged",
        `the step would make a weight '${value}' where float32 holds at most ${largestFloat32}; lower the learning rate or the weight decay`,
      );
    }
    for (let i = 0; i < values.length; i++) {
      const m = firstAfter(i);
      const v = secondAfter(i);
      values[i] = valueAfter(i, m, v);
      first[i] = m;
      second[i] = v;
    }
    this.steps = steps;
    this.zero();
    this.#parameters.changes++;
    return { gradNorm };
  }
}

export type ResolvedStep = { readonly [option in keyof OptimStep]-?: number };

export function resolveStep(step: OptimStep): ResolvedStep {
  const { learningRate, scale = 1, maxGradNorm = Number.POSITIVE_INFINITY } = step;
  const { beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8, weightDecay = 0 } = step;
  return { learningRate, scale, maxGradNorm, beta1, beta2, epsilon, weightDecay };
}

/** Nothing of a step may make weights that are no numbers. */
export function checkStep(step: ResolvedStep): void {
  const finite = (value: number) => Number.isFinite(value);
  const isFloat32 = (value: number) => value >= 0 && value <= largestFloat32;
  const rules: readonly [keyof OptimStep, (value: number) => boolean, string][] = [
    ["learningRate", isFloat32, "a finite number from 0 on, in float32"],
    ["scale", finite, "a finite number"],
    ["maxGradNorm", (value) => value > 0, "a number above 0"],
    ["beta1", (value) => value >= 0 && value < 1, "a number from 0 to below 1"],
    ["beta2", (value) => value >= 0 && value < 1, "a number from 0 to below 1"],
    ["epsilon", (value) => finite(value) && value > 0, "a finite number above 0"],
    ["weightDecay", isFloat32, "a finite number from 0 on, in float32"],
  ];
  for (const [name, isAllowed, allowed] of rules) {
    if (isAllowed(step[name])) continue;
    throw new TreadleError("engine.invalid-request", `${name} '${step[name]}' is not allowed in a step: ${allowed} is`);
  }
}
