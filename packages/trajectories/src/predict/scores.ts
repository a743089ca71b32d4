/** How well predictions foretold what came: of each model beside the others, by how many turns were over. Pure. */
import { mean } from "@treadle/contracts";
import { type ModelName, modelNames } from "./models.ts";
import type { EpisodePrediction } from "./predictor.ts";
import { type Quantity, quantities, stageOf, stages } from "./progress.ts";
import type { LogNormal } from "./prompt-model.ts";

export type PredictorRow = {
  readonly quantity: Quantity;
  /** turns that were over, or `all` */
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
type Amounts = Readonly<Record<Quantity, number>>;
/** A prediction, what had been spent when it was made, and what came after. */
type Outcome = { readonly prediction: EpisodePrediction; readonly spent: Amounts; readonly rest: Amounts };

const within80 = 1.2815515655446004;
const models: readonly PredictorRow["model"][] = [...modelNames, "served", "oracle"];

/** Keeps outcomes as they come, and judges them only when it is asked. */
export class PredictionScores {
  /** by stage */
  readonly #outcomes: readonly Outcome[][] = stages.map(() => []);

  /** What was predicted after so many turns, what had been spent then, and what came after. */
  add(turns: number, prediction: EpisodePrediction, spent: Amounts, rest: Amounts): void {
    this.#outcomes[stageOf(turns)]!.push({ prediction, spent, rest });
  }

  get isEmpty(): boolean {
    return this.#outcomes.every((outcomes) => outcomes.length === 0);
  }

  /** By quantity and stage. */
  report(): PredictorReport {
    const rows: PredictorRow[] = [];
    const notBetter: string[] = [];
    for (const quantity of quantities) {
      for (const [index, stage] of stages.entries()) {
        const outcomes = this.#outcomes[index]!;
        const found = models.flatMap((model) => rowOf(quantity, stage, model, outcomes));
        rows.push(...found);
        const [learned, history] = ["learned", "prompt-history"].map((name) =>
          found.find(({ model }) => model === name),
        );
        if (!learned || !history || learned.logSd < history.logSd) continue;
        const figures = `log-sd ${learned.logSd.toFixed(2)} against ${history.logSd.toFixed(2)}`;
        notBetter.push(`${quantity} after ${stage} turns: no better than prompt history (${figures})`);
      }
    }
    return { rows, notBetter };
  }

  /** Of all stages together; undefined where nothing was predicted. */
  overall(quantity: Quantity, model: PredictorRow["model"]): PredictorRow | undefined {
    return rowOf(quantity, "all", model, this.#outcomes.flat())[0];
  }
}

function rowOf(
  quantity: Quantity,
  stage: string,
  model: PredictorRow["model"],
  outcomes: readonly Outcome[],
): PredictorRow[] {
  if (outcomes.length === 0) return [];
  const said = outcomes.map(({ prediction, spent, rest }): Said => {
    const of = prediction[quantity];
    const oracle = { logMean: Math.log1p(rest[quantity]), logSd: 0 };
    const estimate = model === "served" ? of : model === "oracle" ? oracle : of.models[model];
    return { estimate, rest: rest[quantity], spent: spent[quantity] };
  });
  return [{ quantity, stage, model, ...judge(said) }];
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
