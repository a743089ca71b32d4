/** What predicts log(1 + rest) of a quantity: four that need no learning beyond a mean, and the one that learns. */
import { z } from "zod";
import type { Progress } from "./progress.ts";
import { logLeft, PromptModel, PromptModelState } from "./prompt-model.ts";
import { emptyRegression, Regression, regressionState } from "./regression.ts";

/** The oracle stands beside these where outcomes are known. */
export const modelNames = ["learned", "prompt-history", "tokens-so-far", "constant"] as const;
export type ModelName = (typeof modelNames)[number];

/** A prediction whose outcome is known, or known to be at least that. */
export type Sample = {
  /** without the siblings: many of these are kept until a step is learned */
  readonly progress: Pick<Progress, "turns" | "spent">;
  readonly features: readonly number[];
  readonly base: number;
  readonly logRest: number;
};

const numFeatures = 12;

const Mean = z.strictObject({ weight: z.number().nonnegative(), mean: z.number() });

export const ModelsState = z.strictObject({
  prompts: PromptModelState,
  constant: Mean,
  tokensSoFar: Mean,
  atStart: regressionState(numFeatures),
  later: regressionState(numFeatures),
});
export type ModelsState = z.infer<typeof ModelsState>;

export function emptyModels(prompts: PromptModelState): ModelsState {
  const nothing = { weight: 0, mean: 0 };
  const regression = emptyRegression(numFeatures);
  return { prompts, constant: nothing, tokensSoFar: nothing, atStart: regression, later: regression };
}

/** Samples that a mean remembers. */
const mostWeight = 5000;

export class Models {
  readonly #prompts: PromptModel;
  #constant: z.infer<typeof Mean>;
  #tokensSoFar: z.infer<typeof Mean>;
  readonly #atStart: Regression;
  readonly #later: Regression;

  constructor(state: ModelsState) {
    this.#prompts = new PromptModel(state.prompts);
    this.#constant = state.constant;
    this.#tokensSoFar = state.tokensSoFar;
    this.#atStart = new Regression(state.atStart);
    this.#later = new Regression(state.later);
  }

  get state(): ModelsState {
    return {
      prompts: this.#prompts.state,
      constant: this.#constant,
      tokensSoFar: this.#tokensSoFar,
      atStart: this.#atStart.state,
      later: this.#later.state,
    };
  }

  /** Whether nothing was learned yet, so that errors say nothing of the models. */
  get isEmpty(): boolean {
    return this.#prompts.isEmpty;
  }

  /** What each model says of log(1 + rest), computed when it is asked for. */
  ask(progress: Progress): Asking {
    const { turns } = progress;
    const models = { regression: this.#regression(turns), prompts: this.#prompts, constant: this.#constant.mean };
    return new Asking(progress, models, this.#tokensSoFar.mean);
  }

  /** `clip`: the largest error that is believed, in units of the logarithm. */
  learn({ progress, features, base, logRest }: Sample, clip: number): void {
    if (!this.isEmpty) this.#regression(progress.turns).learn(features, logRest - base, clip);
    if (progress.turns === 0) this.#constant = moved(this.#constant, logRest);
    else this.#tokensSoFar = moved(this.#tokensSoFar, logRest - Math.log1p(progress.spent));
  }

  learnTotals(totals: ReadonlyMap<string, readonly number[]>): void {
    this.#prompts.learn(totals);
  }

  /** A lower bound speaks against a prediction below it, and for nothing else. */
  learnAtLeast({ progress, features, base, logRest }: Sample, clip: number): void {
    const regression = this.#regression(progress.turns);
    if (!this.isEmpty && base + regression.value(features) < logRest) regression.learn(features, logRest - base, clip);
  }

  #regression(turns: number): Regression {
    return turns === 0 ? this.#atStart : this.#later;
  }
}

type Said = { readonly base: number; readonly features: readonly number[] };

type Asked = { readonly regression: Regression; readonly prompts: PromptModel; readonly constant: number };

/** Before anything else is learned or told. */
export class Asking {
  readonly #progress: Progress;
  readonly #models: Asked;
  readonly #tokensSoFar: number;
  /** what the learned model says it from */
  #ofGroup: Said | undefined;

  constructor(progress: Progress, models: Asked, tokensSoFar: number) {
    this.#progress = progress;
    this.#models = models;
    this.#tokensSoFar = tokensSoFar;
  }

  center(name: ModelName): number {
    const { prompt, spent, turns } = this.#progress;
    const { regression, prompts, constant } = this.#models;
    switch (name) {
      case "learned":
        return this.base + regression.value(this.features);
      case "prompt-history":
        return logLeft(prompts.total(prompt), spent);
      case "tokens-so-far":
        return turns === 0 ? constant : Math.log1p(spent) + this.#tokensSoFar;
      case "constant":
        return constant;
    }
  }

  get base(): number {
    return this.#said.base;
  }

  get features(): readonly number[] {
    return this.#said.features;
  }

  get #said(): Said {
    if (this.#ofGroup) return this.#ofGroup;
    const { prompt, siblings, spent } = this.#progress;
    const group = this.#models.prompts.total(prompt, siblings);
    const base = logLeft(group, spent);
    const features = featuresOf(this.#progress, base, (Math.log1p(spent) - group.logMean) / group.logSd);
    this.#ofGroup = { base, features };
    return this.#ofGroup;
  }
}

function moved({ weight, mean }: z.infer<typeof Mean>, value: number): z.infer<typeof Mean> {
  const next = Math.min(mostWeight, weight + 1);
  return { weight: next, mean: mean + (value - mean) / next };
}

/** All of the order of one. The first turn has no last one: a regression of its own has its features at zero. */
function featuresOf(progress: Progress, base: number, survived: number): number[] {
  const { turns, generatedTokens, toolSeconds, contextTokens, numFailures, last, siblings } = progress;
  const perTurn = Math.max(1, turns);
  return [
    1,
    base / 10,
    Math.log1p(contextTokens) / 10,
    siblings.finished.length / (1 + siblings.finished.length + siblings.running.length),
    Math.log1p(generatedTokens / perTurn) / 10,
    Math.log1p(turns),
    Math.log1p(last?.tokens ?? 0) / 10,
    last?.hasToolFailed ? 1 : 0,
    numFailures / perTurn,
    Math.max(-3, last?.meanLogProbability ?? 0),
    Math.max(-3, Math.min(3, survived)) / 3,
    Math.log1p(toolSeconds / perTurn) / 10,
  ];
}
