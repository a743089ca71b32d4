import type { TrainBatch } from "@treadle/contracts";
import type { TokenRows } from "../engine.ts";
import { invalidRequest } from "../model-engine.ts";

/**
 * Throws `engine.invalid-request` unless the arrays fit the rectangle, every token is in the vocabulary and every
 * temperature is positive.
 */
export function checkRows(
  { rows, columns, tokens, temperatures }: TokenRows,
  contextLength: number,
  vocabSize: number,
): void {
  if (tokens.length !== rows * columns) {
    throw invalidRequest(
      `'${tokens.length}' tokens given for '${rows}' rows of '${columns}'; pad every row to one length`,
    );
  }
  if (columns > contextLength) {
    throw invalidRequest(
      `rows have '${columns}' tokens where the model reads '${contextLength}'; shorten them or raise contextLength`,
    );
  }
  for (const token of tokens) {
    if (token < 0 || token >= vocabSize) {
      throw invalidRequest(`token '${token}' is not in the vocabulary of '${vocabSize}'; check the tokenizer`);
    }
  }
  if (!temperatures) return;
  if (temperatures.length !== rows) {
    throw invalidRequest(`'${temperatures.length}' temperatures given for '${rows}' rows; give one a row`);
  }
  for (const temperature of temperatures) {
    if (temperature > 0 && Number.isFinite(temperature)) continue;
    throw invalidRequest(
      `temperature '${temperature}' cannot be scored; only a finite one > 0 is a distribution, so sample at one`,
    );
  }
}

/**
 * Throws `engine.invalid-request` when an array of the batch has another size than its rectangle, a weight is negative
 * or not finite, or a number with a weight is not finite: one such number would spoil every parameter.
 */
export function checkArrays(batch: TrainBatch): void {
  const { rows, columns, weights } = batch;
  for (const name of ["weights", "advantages", "oldLogprobs", "refLogprobs", "returns", "oldValues"] as const) {
    const array = batch[name];
    if (!array) continue;
    if (array.length !== rows * columns) {
      throw invalidRequest(
        `'${name}' has '${array.length}' entries where the batch has '${rows * columns}'; pad it as the tokens are`,
      );
    }
    for (let entry = 0; entry < array.length; entry++) {
      const value = array[entry]!;
      if (Number.isFinite(value) ? name !== "weights" || value >= 0 : weights[entry] === 0) continue;
      const allowed = name === "weights" ? "a finite number >= 0" : "a finite number where the weight is not 0";
      throw invalidRequest(
        `'${name}' has '${value}' in row '${Math.floor(entry / columns)}', column '${entry % columns}'; expected is ${allowed}`,
      );
    }
  }
}

/** The tokens that predict another: all but the last of some rows, so `[rows, columns - 1]`. */
export function predictingTokens({ columns, tokens }: TokenRows, firstRow: number, rows: number): Int32Array {
  const result = new Int32Array(rows * (columns - 1));
  for (let row = 0; row < rows; row++) {
    const start = (firstRow + row) * columns;
    result.set(tokens.subarray(start, start + columns - 1), row * (columns - 1));
  }
  return result;
}
