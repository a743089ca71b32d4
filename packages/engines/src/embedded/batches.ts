import type { TrainBatch } from "@treadle/contracts";
import type { TokenRows } from "../engine.ts";
import { invalidRequest } from "../model-engine.ts";
import type { MicroBatch } from "./transformer-programs.ts";

/** Throws `engine.invalid-request` unless the arrays fit the rectangle and every token is in the vocabulary. */
export function checkRows({ rows, columns, tokens }: TokenRows, contextLength: number, vocabSize: number): void {
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
}

/** Throws `engine.invalid-request` when an array of the batch has another size than its rectangle. */
export function checkArrays(batch: TrainBatch): void {
  const { rows, columns } = batch;
  for (const name of ["weights", "advantages", "oldLogprobs", "refLogprobs", "returns", "oldValues"] as const) {
    const array = batch[name];
    if (array && array.length !== rows * columns) {
      throw invalidRequest(
        `'${name}' has '${array.length}' entries where the batch has '${rows * columns}'; pad it as the tokens are`,
      );
    }
  }
}

/**
 * Cuts a batch into micro-batches of one fixed shape. Predictions move one to the left (column t of a micro-batch
 * predicts token t + 1), so a row of `columns` tokens needs `columns - 1`. What is padded has weight 0.
 */
export function* microBatches(
  batch: TokenRows & Partial<TrainBatch>,
  rows: number,
  columns: number,
): Generator<MicroBatch & { readonly firstRow: number; readonly realRows: number }> {
  const predictions = batch.columns - 1;
  for (let firstRow = 0; firstRow < batch.rows; firstRow += rows) {
    const realRows = Math.min(rows, batch.rows - firstRow);
    const cut = <T extends Float32Array | Int32Array>(into: T, from: T | undefined, shift: number): T => {
      if (!from) return into;
      for (let row = 0; row < realRows; row++) {
        const start = (firstRow + row) * batch.columns + shift;
        into.set(from.subarray(start, start + predictions), row * columns);
      }
      return into;
    };
    const size = rows * columns;
    yield {
      firstRow,
      realRows,
      rows,
      columns,
      tokens: cut(new Int32Array(size), batch.tokens, 0),
      targets: cut(new Int32Array(size), batch.tokens, 1),
      weights: cut(new Float32Array(size), batch.weights, 1),
      advantages: cut(new Float32Array(size), batch.advantages, 1),
      oldLogprobs: cut(new Float32Array(size), batch.oldLogprobs, 1),
      refLogprobs: cut(new Float32Array(size), batch.refLogprobs, 1),
      returns: cut(new Float32Array(size), batch.returns, 1),
      oldValues: cut(new Float32Array(size), batch.oldValues, 1),
    };
  }
}
