/** What becomes of completions that have begun when their engine gets other weights. Pure. */
import { TreadleError, versionRunsOf } from "@treadle/contracts";
import type { BegunCompletion, GenerateOptions } from "./engine.ts";

export const nothing: BegunCompletion = {
  tokens: new Int32Array(),
  logprobs: new Float32Array(),
  numAppended: 0,
  turnFrom: 0,
};

export function joined(a: Int32Array, b: Int32Array): Int32Array {
  const both = new Int32Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

/** What stands before the turn under way. */
export function behindAnswers({ tokens, logprobs, numAppended, turnFrom, versions }: BegunCompletion): BegunCompletion {
  if (turnFrom === 0) return nothing;
  return {
    tokens: tokens.slice(0, turnFrom),
    logprobs: logprobs.slice(0, turnFrom),
    numAppended,
    turnFrom,
    ...(versions && { versions: versionRunsOf(versions, turnFrom, versions.at(-1)?.[0] ?? 0) }),
  };
}

/** Of engines whose completions begin again from their prompts, whatever is asked. */
export function refuseOnNewWeights(kind: string, { onNewWeights }: GenerateOptions): void {
  if (onNewWeights === undefined) return;
  throw new TreadleError(
    "engine.invalid-request",
    `'onNewWeights' is '${onNewWeights}', but an engine of kind '${kind}' begins completions again from their prompts when weights come; leave it out, or use the embedded engine or the emulated one`,
  );
}
