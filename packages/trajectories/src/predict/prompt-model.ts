/**
 * How long samples of one prompt are, on the scale of log(1 + total): a sample differs from its prompt's mean by
 * `within`, and prompts' means differ from the mean of all by `between`. What is remembered of a prompt is how it
 * differs from all, so that when the policy's answers grow, all prompts' predictions do; and older steps count less.
 */
import { mean as meanOf } from "@treadle/contracts";
import { z } from "zod";
import { hazard, inverseNormal, upperTail } from "../normal.ts";
import type { Siblings } from "./progress.ts";

/** A prompt, how many samples of it are remembered, and the sum of their differences from the mean of all. */
const PromptMemory = z.tuple([z.string(), z.number().nonnegative(), z.number()]);

export const PromptModelState = z.strictObject({
  weight: z.number().nonnegative(),
  mean: z.number(),
  withinVariance: z.number().positive(),
  betweenVariance: z.number().positive(),
  /** that learned last stands last */
  prompts: z.array(PromptMemory),
});
export type PromptModelState = z.infer<typeof PromptModelState>;

export const emptyPromptModel: PromptModelState = {
  weight: 0,
  mean: 0,
  withinVariance: 0.5,
  betweenVariance: 0.5,
  prompts: [],
};

/** What a step counts for once another was learned. */
const kept = 0.8;
/** Prompts that are remembered; the one that was not seen for longest is forgotten. */
const mostPrompts = 20_000;

/** Of log(1 + x). */
export type LogNormal = { readonly logMean: number; readonly logSd: number };

export class PromptModel {
  #weight: number;
  #mean: number;
  #within: number;
  #between: number;
  readonly #prompts: Map<string, { readonly weight: number; readonly sum: number }>;

  constructor(state: PromptModelState) {
    this.#weight = state.weight;
    this.#mean = state.mean;
    this.#within = state.withinVariance;
    this.#between = state.betweenVariance;
    this.#prompts = new Map(state.prompts.map(([prompt, weight, sum]) => [prompt, { weight, sum }]));
  }

  /** Whether no step was learned yet, so that what it says means nothing. */
  get isEmpty(): boolean {
    return this.#weight === 0;
  }

  get state(): PromptModelState {
    return {
      weight: this.#weight,
      mean: this.#mean,
      withinVariance: this.#within,
      betweenVariance: this.#between,
      prompts: Array.from(this.#prompts, ([prompt, { weight, sum }]) => [prompt, weight, sum] as const),
    };
  }

  /** log(1 + total) of a sample, from what was learned of its prompt and, where they are given, from its siblings. */
  total(prompt: string, siblings?: Siblings): LogNormal {
    const memory = this.#prompts.get(prompt) ?? { weight: 0, sum: 0 };
    const sd = Math.sqrt(this.#within);
    let precision = 1 / this.#between + memory.weight / this.#within;
    const prior = this.#mean + memory.sum / this.#within / precision;
    let mean = prior;
    if (siblings !== undefined && siblings.finished.length + siblings.running.length > 0) {
      const priorPrecision = precision;
      const { finished, running } = siblings;
      // Newton's method on a concave likelihood: the total of a sample that runs is at least what it has.
      for (let round = 0; round < 6; round++) {
        let score = priorPrecision * (prior - mean);
        precision = priorPrecision + finished.length / this.#within;
        for (const total of finished) score += (total - mean) / this.#within;
        for (const least of running) {
          const z = (least - mean) / sd;
          // So short so far that it says nothing.
          if (z < -4) continue;
          const excess = hazard(z);
          score += excess / sd;
          precision += (excess * (excess - z)) / this.#within;
        }
        const step = score / precision;
        mean += step;
        if (Math.abs(step) < 1e-4) break;
      }
    }
    return { logMean: mean, logSd: Math.sqrt(this.#within + 1 / precision) };
  }

  /** One step's totals, by prompt. */
  learn(totals: ReadonlyMap<string, readonly number[]>): void {
    const groups = [...totals].filter(([, values]) => values.length > 0);
    if (groups.length === 0) return;
    const logs = groups.map(([prompt, values]) => ({ prompt, values: values.map(Math.log1p) }));
    const all = logs.flatMap(({ values }) => values);
    const mean = meanOf(all);
    const trust = this.#weight * kept;
    this.#weight = trust + all.length;
    this.#mean += (mean - this.#mean) * (all.length / this.#weight);
    this.#learnVariances(logs, mean, trust);
    for (const { prompt, values } of logs) {
      const memory = this.#prompts.get(prompt) ?? { weight: 0, sum: 0 };
      this.#prompts.delete(prompt);
      const sum = values.reduce((each, value) => each + value - mean, 0);
      this.#prompts.set(prompt, { weight: memory.weight * kept + values.length, sum: memory.sum * kept + sum });
    }
    for (const prompt of this.#prompts.keys()) {
      if (this.#prompts.size <= mostPrompts) break;
      this.#prompts.delete(prompt);
    }
  }

  /** Within groups from their spread; between them from what the spread of their means exceeds that by. */
  #learnVariances(groups: readonly { readonly values: readonly number[] }[], mean: number, trust: number): void {
    let [squares, freedom, between, numGroups] = [0, 0, 0, 0];
    for (const { values } of groups) {
      const own = meanOf(values);
      squares += values.reduce((sum, value) => sum + (value - own) ** 2, 0);
      freedom += values.length - 1;
    }
    if (freedom > 0) this.#within = blend(this.#within, squares / freedom, freedom, trust);
    for (const { values } of groups) {
      const own = meanOf(values);
      between += (own - mean) ** 2 - this.#within / values.length;
      numGroups++;
    }
    if (numGroups > 1) this.#between = blend(this.#between, between / (numGroups - 1), numGroups, trust);
  }
}

const leastVariance = 1e-4;

function blend(old: number, seen: number, count: number, trust: number): number {
  // What nobody has measured counts as a handful of samples.
  const before = trust + 4;
  return Math.max(leastVariance, (old * before + seen * count) / (before + count));
}

const points = 8;
const eulerGamma = 0.5772156649015329;

/** The mean of log(1 + total - spent), given that the total exceeds what was spent. */
export function logLeft({ logMean, logSd }: LogNormal, spent: number): number {
  const z = (Math.log1p(spent) - logMean) / logSd;
  const tail = upperTail(z);
  // Far beyond what was expected, the excess of a log-normal is nearly exponential.
  if (tail < 1e-9) return Math.log1p(Math.exp(Math.log(((1 + spent) * logSd) / z) - eulerGamma));
  let sum = 0;
  for (let i = 0; i < points; i++) {
    // From the upper tail, where the quantile is accurate.
    const total = Math.expm1(logMean - logSd * inverseNormal((tail * (i + 0.5)) / points));
    sum += Math.log1p(Math.max(0, total - spent));
  }
  return sum / points;
}
