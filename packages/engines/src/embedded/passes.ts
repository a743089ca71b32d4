import { packByTokens } from "@treadle/contracts";
import type { TokenRows } from "../engine.ts";

/** Rows of a batch, cut to the tokens that predict what counts, laid one after another. */
export type Pass = {
  /** of the batch */
  readonly rows: readonly number[];
  /** tokens of each of them that are read */
  readonly lengths: readonly number[];
  /** where each of them begins in `tokens` */
  readonly starts: readonly number[];
  readonly tokens: Int32Array;
  /** of each row */
  readonly temperatures: Float32Array | undefined;
};

/**
 * A row is read up to its last entry with a weight, without weights up to its end, but for the token that predicts nothing. Rows in
 * which nothing counts are in no pass; one alone may exceed `maxTokens`.
 */
export function passesOf(batch: TokenRows, maxTokens: number): Pass[] {
  const read = Array.from({ length: batch.rows }, (_, row) => numPredicting(batch, row));
  const counting = [...read.keys()].filter((row) => (read[row] as number) > 0);
  const lengthsOf = (rows: readonly number[]): number[] => rows.map((row) => read[row] as number);
  return packByTokens(lengthsOf(counting), maxTokens).map((group) => {
    const rows = group.map((index) => counting[index] as number);
    const lengths = lengthsOf(rows);
    let count = 0;
    const starts = lengths.map((length) => {
      count += length;
      return count - length;
    });
    const tokens = new Int32Array(count);
    rows.forEach((row, which) => {
      const first = row * batch.columns;
      tokens.set(batch.tokens.subarray(first, first + (lengths[which] as number)), starts[which]);
    });
    const temperatures = batch.temperatures && Float32Array.from(rows, (row) => batch.temperatures?.[row] as number);
    return { rows, lengths, starts, tokens, temperatures };
  });
}

function numPredicting({ columns, weights }: TokenRows, row: number): number {
  if (!weights) return Math.max(0, columns - 1);
  let column = columns - 1;
  while (column > 0 && weights[row * columns + column] === 0) column--;
  return Math.max(0, column);
}
