import { TreadleError } from "@treadle/contracts";
import type { OptimStep } from "./engine.ts";
import type { Parameters } from "./parameters.ts";

/** Its square is finite in float32; a second moment that is not would stop its parameter for good. */
const largestGradNorm = 1e19;

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
    const { learningRate, scale = 1, maxGradNorm = Number.POSITIVE_INFINITY } = options;
    const { beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8, weightDecay = 0 } = options;
    checkStep({ learningRate, scale, maxGradNorm, beta1, beta2, epsilon, weightDecay });
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
    this.steps++;
    const firstScale = learningRate / (1 - beta1 ** this.steps);
    const secondScale = 1 / (1 - beta2 ** this.steps);
    const { first, second } = this;
    for (let i = 0; i < values.length; i++) {
      const gradient = gradients[i]! * factor;
      const m = beta1 * first[i]! + (1 - beta1) * gradient;
      const v = beta2 * second[i]! + (1 - beta2) * gradient * gradient;
      first[i] = m;
      second[i] = v;
      const decay = this.#decayed[i] === 1 ? learningRate * weightDecay * values[i]! : 0;
      values[i]! -= (firstScale * m) / (Math.sqrt(v * secondScale) + epsilon) + decay;
    }
    this.zero();
    this.#parameters.changes++;
    return { gradNorm };
  }
}

/** Nothing of a step may make weights that are no numbers. */
function checkStep(step: Required<OptimStep>): void {
  const finite = (value: number) => Number.isFinite(value);
  const rules: readonly [keyof OptimStep, (value: number) => boolean, string][] = [
    ["learningRate", (value) => finite(value) && value >= 0, "a finite number from 0 on"],
    ["scale", finite, "a finite number"],
    ["maxGradNorm", (value) => value > 0, "a number above 0"],
    ["beta1", (value) => value >= 0 && value < 1, "a number from 0 to below 1"],
    ["beta2", (value) => value >= 0 && value < 1, "a number from 0 to below 1"],
    ["epsilon", (value) => finite(value) && value > 0, "a finite number above 0"],
    ["weightDecay", (value) => finite(value) && value >= 0, "a finite number from 0 on"],
  ];
  for (const [name, isAllowed, allowed] of rules) {
    if (isAllowed(step[name] as number)) continue;
    throw new TreadleError("engine.invalid-request", `${name} '${step[name]}' is not allowed in a step: ${allowed} is`);
  }
}
