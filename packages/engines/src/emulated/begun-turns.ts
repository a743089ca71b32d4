/** What of a completion was begun elsewhere, by the turns that its profile gives it. Pure. */
import type { BegunCompletion } from "../engine.ts";

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

/** What stands before the turn under way, whose tokens are drawn where it begins. */
export function saidBefore({ tokens, logprobs, numAppended, turnFrom }: BegunCompletion): BegunCompletion {
  if (turnFrom === 0) return nothing;
  return { tokens: tokens.slice(0, turnFrom), logprobs: logprobs.slice(0, turnFrom), numAppended, turnFrom };
}
