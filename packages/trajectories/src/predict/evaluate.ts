import type { z } from "zod";
import { type ModelName, modelNames } from "./models.ts";
import { EpisodePredictor } from "./predictor.ts";
import { type Quantity, quantities, stageOf, stages, type Turn } from "./progress.ts";
import type { LogNormal } from "./prompt-model.ts";

/** An episode as it went. */
export type RecordedEpisode = {
  readonly prompt: string;
  readonly contextTokens: number;
  readonly turns: readonly z.input<typeof Turn>[];
};

export type PredictorRow = {
  readonly quantity: Quantity;
  /** turns that were over */
  readonly stage: string;
  /** `served`: what a scheduler gets, the better of learned and prompt history */
  readonly model: ModelName | "served" | "oracle";
  readonly count: number;
  /** between logarithms of what was predicted and of what came; null where either never differs */
  readonly pearson: number | null;
  /** of the tenth that turned out longest in all, the share among the tenth that was predicted to be */
  readonly recallOfLongest: number;
  /** root of the mean squared error of the logarithm */
  readonly logSd: number;
  /** share of outcomes within the 80 % interval */
  readonly coverage: number;
};

export type PredictorReport = {
  readonly rows: readonly PredictorRow[];
  /** quantities and stages at which the learned model is no better than prompt history, in words */
  readonly notBetter: readonly string[];
};

type Said = { readonly estimate: LogNormal; readonly rest: number; readonly spent: number };

const within80 = 1.2815515655446004;

/**
 * Plays steps of episodes against a predictor, every episode at a token a `tokenSeconds`, and reports how well it
 * foretold those after the first `learnSteps`: each step is learned after it was judged.
 */
export function evaluatePredictor(
  steps: readonly (readonly RecordedEpisode[])[],
  { learnSteps, tokenSeconds = 0.01 }: { readonly learnSteps: number; readonly tokenSeconds?: number },
): PredictorReport {
  const predictor = new EpisodePredictor();
  const said = new Map<string, Said[]>();
  for (const [step, episodes] of steps.entries()) {
    playStep(predictor, step, episodes, tokenSeconds, (key, each) => {
      if (step < learnSteps) return;
      const others = said.get(key);
      if (others) others.push(each);
      else said.set(key, [each]);
    });
    predictor.learn();
  }
  const rows: PredictorRow[] = [];
  const notBetter: string[] = [];
  for (const quantity of quantities) {
    for (const stage of stages) {
      const of = (model: PredictorRow["model"]) => {
        const all = said.get(keyOf(quantity, stage, model));
        return all && { quantity, stage, model, ...judge(all) };
      };
      const found = [...modelNames, "served" as const, "oracle" as const].flatMap((model) => of(model) ?? []);
      rows.push(...found);
      const [learned, history] = ["learned", "prompt-history"].map((name) => found.find(({ model }) => model === name));
      if (!learned || !history || learned.logSd < history.logSd) continue;
      const figures = `log-sd ${learned.logSd.toFixed(2)} against ${history.logSd.toFixed(2)}`;
      notBetter.push(`${quantity} after ${stage} turns: no better than prompt history (${figures})`);
    }
  }
  return { rows, notBetter };
}

/** Teaches a predictor steps of episodes, in their order. */
export function learnSteps(
  predictor: EpisodePredictor,
  steps: readonly (readonly RecordedEpisode[])[],
  tokenSeconds = 0.01,
): void {
  for (const [step, episodes] of steps.entries()) {
    playStep(predictor, step, episodes, tokenSeconds, () => {});
    predictor.learn();
  }
}

const keyOf = (quantity: Quantity, stage: string, model: string): string => `${quantity} ${stage} ${model}`;

/** All episodes begin together; what they do comes in the order of its time. */
function playStep(
  predictor: EpisodePredictor,
  step: number,
  episodes: readonly RecordedEpisode[],
  tokenSeconds: number,
  say: (key: string, said: Said) => void,
): void {
  const idOf = (index: number): string => `${step}/${index}`;
  const moments: { readonly at: number; readonly index: number; readonly turn: number }[] = [];
  for (const [index, { prompt, contextTokens, turns }] of episodes.entries()) {
    predictor.begin(idOf(index), { prompt, contextTokens, group: `${step}/${prompt}` });
    let at = 0;
    for (const [turn, { tokens, toolSeconds = 0 }] of turns.entries()) {
      moments.push({ at, index, turn });
      at += tokens * tokenSeconds + toolSeconds;
    }
    moments.push({ at, index, turn: turns.length });
  }
  moments.sort((a, b) => a.at - b.at || a.index - b.index || a.turn - b.turn);
  for (const { index, turn } of moments) {
    const { turns } = episodes[index]!;
    if (turn > 0) predictor.turnEnded(idOf(index), turns[turn - 1]!);
    if (turn === turns.length) {
      predictor.ended(idOf(index));
      continue;
    }
    const prediction = predictor.predict(idOf(index));
    const stage = stages[stageOf(turn)]!;
    for (const quantity of quantities) {
      const sum = (part: typeof turns) => part.reduce((total, each) => total + (each[quantity] ?? 0), 0);
      const [spent, rest] = [sum(turns.slice(0, turn)), sum(turns.slice(turn))];
      const { models, ...served } = prediction[quantity];
      const told = { ...models, served, oracle: { logMean: Math.log1p(rest), logSd: 0 } };
      for (const [model, estimate] of Object.entries(told)) {
        say(keyOf(quantity, stage, model), { estimate, rest, spent });
      }
    }
  }
}

function judge(
  said: readonly Said[],
): Pick<PredictorRow, "count" | "pearson" | "recallOfLongest" | "logSd" | "coverage"> {
  const count = said.length;
  const errors = said.map(({ estimate, rest }) => Math.log1p(rest) - estimate.logMean);
  const isWithin = (error: number, i: number) => Math.abs(error) <= within80 * said[i]!.estimate.logSd + 1e-9;
  const longest = tenth(said.map(({ spent, rest }) => Math.round((spent + rest) * 1e6) / 1e6));
  // Rounded, so that totals which are equal stay so on their way through the logarithm.
  const total = ({ spent, estimate }: Said) => Math.round((spent + Math.expm1(estimate.logMean)) * 1e6) / 1e6;
  const predicted = tenth(said.map(total));
  return {
    count,
    pearson: pearson(
      said.map(({ estimate }) => estimate.logMean),
      said.map(({ rest }) => Math.log1p(rest)),
    ),
    recallOfLongest: [...longest].filter((i) => predicted.has(i)).length / longest.size,
    logSd: Math.sqrt(errors.reduce((sum, error) => sum + error ** 2, 0) / count),
    coverage: errors.filter(isWithin).length / count,
  };
}

/** Indices of the largest tenth, at least one. */
function tenth(values: readonly number[]): Set<number> {
  const order = values.map((_, i) => i).sort((a, b) => values[b]! - values[a]! || a - b);
  return new Set(order.slice(0, Math.ceil(values.length / 10)));
}

function pearson(xs: readonly number[], ys: readonly number[]): number | null {
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [x0, y0] = [mean(xs), mean(ys)];
  let [xy, xx, yy] = [0, 0, 0];
  for (const [i, x] of xs.entries()) {
    xy += (x - x0) * (ys[i]! - y0);
    xx += (x - x0) ** 2;
    yy += (ys[i]! - y0) ** 2;
  }
  const scale = Math.sqrt(xx * yy);
  return scale > 1e-12 * xs.length ? xy / scale : null;
}
