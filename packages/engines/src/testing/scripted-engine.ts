import type { LossMetrics, LossSpec, TrainBatch } from "@treadle/contracts";
import { checkArrays, checkRows } from "../embedded/batches.ts";
import { passesOf } from "../embedded/passes.ts";
import { lossGradient } from "../embedded/policy-loss.ts";
import type { OptimStep, TokenRows, TrainingEngine } from "../engine.ts";
import { ModelEngine } from "../model-engine.ts";

/** What a policy says of a row, one entry a token; entry 0 is of no prediction. */
export type Script = {
  readonly logprobs: ArrayLike<number>;
  /** log-probability of each of the vocabulary's other entries */
  readonly others: ArrayLike<number>;
  readonly values: ArrayLike<number>;
};

type Slopes = { readonly logprobs: Float64Array; readonly values: Float64Array };

/**
 * A training engine for tests whose policy is given: `scriptOf` says what it thinks of the row that begins with a token.
 * Losses and their gradients, by log-probabilities and values, are those of the embedded engine; it trains nothing.
 */
export class ScriptedEngine extends ModelEngine implements TrainingEngine {
  override readonly kind = "scripted";
  /** Of the rows by their first token: the loss's slope at each chosen token and value, before a step's scale. */
  readonly slopes: Map<number, Slopes> = new Map();
  /** of what was accumulated, before a step's scale */
  loss = 0;
  readonly steps: OptimStep[] = [];
  readonly #vocabSize: number;
  readonly #scriptOf: (firstToken: number) => Script;

  constructor(vocabSize: number, scriptOf: (firstToken: number) => Script) {
    super([{ name: "none", shape: [1] }], () => new Float32Array(1));
    this.#vocabSize = vocabSize;
    this.#scriptOf = scriptOf;
  }

  async forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<LossMetrics> {
    const { rows, columns } = batch;
    checkRows(batch, columns, this.#vocabSize);
    checkArrays(batch);
    const logprobs = new Float32Array(rows * (columns - 1) * this.#vocabSize);
    const values = new Float32Array(rows * (columns - 1));
    this.#eachPrediction(batch, (at, place, script, token) => {
      logprobs.fill(script.others[token]!, place * this.#vocabSize, (place + 1) * this.#vocabSize);
      logprobs[place * this.#vocabSize + batch.tokens[at]!] = script.logprobs[token]!;
      values[place] = script.values[token]!;
    });
    const [pass] = passesOf({ ...batch, weights: undefined }, Number.POSITIVE_INFINITY);
    if (!pass) return { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
    const gradient = lossGradient(loss, batch, pass, { logprobs, values });
    this.#eachPrediction(batch, (at, place, _, token) => {
      const slopes = this.#slopesOf(batch, at);
      slopes.logprobs[token] = gradient.logprobs[place * this.#vocabSize + batch.tokens[at]!]!;
      slopes.values[token] = gradient.values?.[place] ?? 0;
    });
    this.loss += gradient.metrics.loss;
    return gradient.metrics;
  }

  async logprobs(rows: TokenRows): Promise<Float32Array> {
    const result = new Float32Array(rows.rows * rows.columns);
    this.#eachPrediction(rows, (at, _, script, token) => {
      result[at] = script.logprobs[token]!;
    });
    return result;
  }

  async values(rows: TokenRows): Promise<Float32Array> {
    const result = new Float32Array(rows.rows * rows.columns);
    this.#eachPrediction(rows, (at, _, script, token) => {
      result[at] = script.values[token]!;
    });
    return result;
  }

  protected override applyStep(step: OptimStep): { readonly gradNorm: number } {
    this.steps.push(step);
    return super.applyStep(step);
  }

  /** Entries of the rectangle that a row's script has something to say of, with their place among predictions. */
  #eachPrediction(
    { rows, columns, tokens }: TokenRows,
    act: (at: number, place: number, script: Script, token: number) => void,
  ): void {
    for (let row = 0; row < rows; row++) {
      const script = this.#scriptOf(tokens[row * columns]!);
      for (let token = 1; token < Math.min(columns, script.logprobs.length); token++) {
        act(row * columns + token, row * (columns - 1) + token - 1, script, token);
      }
    }
  }

  #slopesOf({ columns, tokens }: TokenRows, at: number): Slopes {
    const first = tokens[Math.floor(at / columns) * columns]!;
    const known = this.slopes.get(first);
    if (known) return known;
    const slopes = { logprobs: new Float64Array(columns), values: new Float64Array(columns) };
    this.slopes.set(first, slopes);
    return slopes;
  }
}
