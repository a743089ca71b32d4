import { type LossSpec, minTemperature, type TrainBatch } from "@treadle/contracts";
import type { ControlBatch, GenerateOptions, TokenRows } from "../engine.ts";
import { checkKeys, checkOrder, invalidRequest } from "../model-engine.ts";

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
    if (temperature >= Math.fround(minTemperature) && Number.isFinite(temperature)) continue;
    throw invalidRequest(
      `temperature '${temperature}' cannot be scored; only a finite one >= ${minTemperature} is a distribution, so sample at one`,
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

/** Throws `engine.invalid-request` for an empty prompt, one that fills the context, a token out of range, or keys of others. */
export function checkPrompts(
  prompts: readonly Int32Array[],
  options: GenerateOptions,
  contextLength: number,
  vocabSize: number,
): void {
  for (const tokens of prompts) {
    if (tokens.length === 0)
      throw invalidRequest("a prompt has '0' tokens where at least one was expected; start prompts with a token");
    checkRows({ rows: 1, columns: tokens.length, tokens }, contextLength - 1, vocabSize);
  }
  checkKeys(prompts, options);
  checkOrder(options);
}

/** Throws `engine.invalid-request` when a loss needs what the batch or the model lacks. */
export function checkLoss(batch: TrainBatch, loss: LossSpec, hasValueHead: boolean): void {
  if (loss.type === "cross-entropy") return;
  if (!batch.advantages) throw invalidRequest("a policy-gradient batch has no 'advantages'; compute them first");
  if (loss.klCoefficient > 0 && !batch.refLogprobs) {
    throw invalidRequest(
      `klCoefficient is '${loss.klCoefficient}' and the batch has no 'refLogprobs'; score it with the reference model or set the coefficient to 0`,
    );
  }
  if (!loss.value) return;
  requireValueHead(hasValueHead);
  if (!batch.returns || !batch.oldValues) {
    throw invalidRequest(
      "the loss trains values and the batch has no 'returns' or 'oldValues'; estimate advantages with a critic first",
    );
  }
}

export function requireValueHead(hasValueHead: boolean): void {
  if (hasValueHead) return;
  throw invalidRequest("the model has no value head where values were asked for; set valueHead in its configuration");
}

/**
 * Throws `engine.invalid-request` when an array of the batch has another size than its rows, a weight is negative or not
 * finite, or another number is not finite where the weight is not 0.
 */
export function checkControlBatch(batch: ControlBatch, observationSize: number, actionSize: number): void {
  const { rows, weights } = batch;
  checkNumbers("weights", weights, rows, 1, (weight) => weight >= 0);
  const widths = { observations: observationSize, actions: actionSize };
  for (const [name, width] of Object.entries(widths))
    checkNumbers(name, batch[name as "actions"], rows, width, any, weights);
  for (const name of ["advantages", "oldLogprobs", "returns", "oldValues"] as const) {
    checkNumbers(name, batch[name], rows, 1, any, weights);
  }
}

const any = (): boolean => true;

/** Throws `engine.invalid-request` unless `values` are `width` finite and allowed numbers a row, where its weight is not 0. */
export function checkNumbers(
  name: string,
  values: Float32Array | Uint32Array,
  rows: number,
  width: number,
  isAllowed: (value: number) => boolean = any,
  weights?: Float32Array,
): void {
  if (values.length !== rows * width) {
    throw invalidRequest(
      `'${name}' has '${values.length}' entries where '${rows * width}' were expected; check rows and sizes`,
    );
  }
  for (let at = 0; at < values.length; at++) {
    const value = values[at]!;
    const row = Math.floor(at / width);
    if ((Number.isFinite(value) && isAllowed(value)) || weights?.[row] === 0) continue;
    const allowed = name === "weights" ? "a finite number >= 0" : "a finite number";
    throw invalidRequest(`'${name}' has '${value}' in row '${row}'; expected is ${allowed}`);
  }
}
