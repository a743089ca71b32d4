import fc from "fast-check";
import { expect } from "vitest";
import type { Reading, Slots } from "../src/embedded/slots.ts";

export const vocabSize = 5;
export const contextLength = 12;

/** A model whose next-token distribution is a function of the tokens it was fed, as a cache would hold them. */
export function distribution(history: readonly number[], version: number): number[] {
  const seed = history.reduce((hash, token) => (hash * 31 + token + 7) % 1009, version + 1);
  const scores = Array.from({ length: vocabSize }, (_, token) => Math.sin(seed * (token + 1)));
  const total = Math.log(scores.reduce((sum, score) => sum + Math.exp(score), 0));
  return scores.map((score) => score - total);
}

/** What to read next, after what it copies; no sequence reads a prompt that another has read. */
export function take(slots: Slots, histories: number[][], chunk: number): readonly Reading[] {
  const { copies, readings } = slots.next(chunk);
  for (const { from, to, count } of copies) {
    expect(histories[from]!.length, "what is copied was not read").toBeGreaterThanOrEqual(count);
    histories[to] = histories[from]!.slice(0, count);
  }
  return readings;
}

/** What the model says after each reading; `histories` are what the caches hold. */
export function read(readings: readonly Reading[], histories: number[][], version: number): Float32Array {
  const logprobs = new Float32Array(readings.length * vocabSize);
  readings.forEach(({ cache, from, tokens }, row) => {
    expect(from, "a position was skipped").toBeLessThanOrEqual(histories[cache]!.length);
    histories[cache] = [...histories[cache]!.slice(0, from), ...tokens];
    logprobs.set(distribution(histories[cache]!, version), row * vocabSize);
  });
  return logprobs;
}

export const promptLists = fc.array(
  fc
    .array(fc.integer({ min: 0, max: vocabSize - 1 }), { minLength: 1, maxLength: 8 })
    .map((tokens) => Int32Array.from(tokens)),
  { minLength: 1, maxLength: 10 },
);
