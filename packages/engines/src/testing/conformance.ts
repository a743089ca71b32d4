/** What suites of promises are made of. They depend on no test runner, so that engines of other projects can be held to them. */
import assert from "node:assert/strict";
import type { Completion, Weights } from "@treadle/contracts";
import { sealWeights } from "../parameters.ts";

/** `run` rejects with an AssertionError where the promise that `name` says is broken, also by never ending. */
export type ConformanceCase = { readonly name: string; readonly run: () => Promise<void> };

/** Cases run one after the other, in any order, on what the first of them makes; `close` ends that. */
export type Conformance = { readonly cases: readonly ConformanceCase[]; readonly close: () => Promise<void> };

/** The sizes of the model that a tested engine runs. */
export const conformingModel = { vocabSize: 7, contextLength: 6 };

export type ConformanceOptions = {
  /** for which a case may run, what it is the first to make not counted; default: 2 minutes */
  readonly limitMs?: number;
};

/** What a suite does around each case. */
export type AroundCases<T> = {
  /** what a case is given; `fail` has it fail at once, also where nobody awaits what has gone wrong */
  readonly watch?: (tested: T, fail: (error: unknown) => void) => T;
  /** after a case that has failed: what it has left must not fail the next */
  readonly settle?: (tested: T) => void;
};

/** Cases over what is made once, when it is first needed. */
export function casesOver<T extends { close(): Promise<void> }>(
  create: () => Promise<T>,
  promises: Readonly<Record<string, (tested: T) => Promise<void>>>,
  { limitMs = 120_000 }: ConformanceOptions = {},
  { watch = (tested) => tested, settle }: AroundCases<T> = {},
): Conformance {
  let made: Promise<T> | undefined;
  const tested = (): Promise<T> => {
    made ??= create();
    return made;
  };
  const run = async (keep: (tested: T) => Promise<void>): Promise<void> => {
    const given = await tested();
    try {
      await endsWithin((fail) => keep(watch(given, fail)), limitMs);
    } catch (error) {
      settle?.(given);
      throw error;
    }
  };
  return {
    cases: Object.entries(promises).map(([name, keep]) => ({ name, run: () => run(keep) })),
    // What could not be made has told so in each case.
    close: async () => (await made?.catch(() => undefined))?.close(),
  };
}

async function endsWithin(keep: (fail: (error: unknown) => void) => Promise<void>, limitMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const message = `it has not ended within '${limitMs}' ms`;
    timer = setTimeout(() => reject(new assert.AssertionError({ message })), limitMs);
  });
  let fail!: (error: unknown) => void;
  const failed = new Promise<never>((_, reject) => {
    fail = (error) => reject(asAssertion(error));
  });
  failed.catch(() => {}); // it may fail once its case has ended
  try {
    await Promise.race([failed, keep(fail), late]);
  } finally {
    clearTimeout(timer);
  }
}

function asAssertion(error: unknown): assert.AssertionError {
  if (error instanceof assert.AssertionError) return error;
  return new assert.AssertionError({ message: `a callback has thrown '${String(error)}'` });
}

export function assertClose(actual: ArrayLike<number>, expected: ArrayLike<number>, tolerance: number): void {
  assert.equal(actual.length, expected.length);
  for (let i = 0; i < actual.length; i++) {
    const [value, wanted] = [actual[i] as number, expected[i] as number];
    assert.ok(
      Math.abs(value - wanted) <= tolerance,
      `entry ${i} is '${value}', and not within ${tolerance} of '${wanted}'`,
    );
  }
}

export const tokensOf = (completions: readonly Completion[]): number[][] =>
  completions.map(({ tokens }) => [...tokens]);

/** Equal tokens, with log-probabilities that are equal up to rounding. */
export function assertAlike(actual: readonly Completion[], expected: readonly Completion[]): void {
  assert.deepEqual(tokensOf(actual), tokensOf(expected));
  for (const [index, { logprobs }] of actual.entries())
    assertClose(logprobs, (expected[index] as Completion).logprobs, 1e-5);
}

/** With a TreadleError of that code. */
export async function assertRefused(promise: Promise<unknown>, code: string): Promise<void> {
  const outcome = await promise.then(
    () => "nothing",
    (error: { code?: unknown }) => error.code ?? error,
  );
  assert.equal(outcome, code, `it has to be refused with '${code}'`);
}

export const versioned = ({ parameters }: Weights, policyVersion: number): Weights =>
  sealWeights({ policyVersion, parameters });
