import type { Completion, Sampling } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Slots } from "../src/embedded/slots.ts";

const vocabSize = 5;
const contextLength = 12;

/** A model whose next-token distribution is a function of the tokens it was fed, as a cache would hold them. */
function distribution(history: readonly number[], version: number): number[] {
  const seed = history.reduce((hash, token) => (hash * 31 + token + 7) % 1009, version + 1);
  const scores = Array.from({ length: vocabSize }, (_, token) => Math.sin(seed * (token + 1)));
  const total = Math.log(scores.reduce((sum, score) => sum + Math.exp(score), 0));
  return scores.map((score) => score - total);
}

/** Drives the slots to the end; before step `restartAt` the model changes to version 1. */
function run(size: number, prompts: readonly Int32Array[], sampling: Sampling, restartAt = Number.POSITIVE_INFINITY) {
  const slots = new Slots(size, prompts, sampling, contextLength);
  const histories: number[][] = Array.from({ length: size }, () => []);
  const tokens = new Int32Array(size);
  const positions = new Int32Array(size);
  const completions = new Map<number, Completion>();
  for (let step = 0; !slots.done; step++) {
    if (step === restartAt) slots.restart();
    const version = step >= restartAt ? 1 : 0;
    slots.feed(tokens, positions);
    const logprobs = new Float32Array(size * vocabSize);
    histories.forEach((history, slot) => {
      expect(positions[slot]!, "a position was skipped").toBeLessThanOrEqual(history.length);
      histories[slot] = [...history.slice(0, positions[slot]!), tokens[slot]!];
      logprobs.set(distribution(histories[slot]!, version), slot * vocabSize);
    });
    for (const [index, completion] of slots.advance(logprobs, version)) {
      expect(completions.has(index), "a prompt finished twice").toBe(false);
      completions.set(index, completion);
    }
  }
  return completions;
}

const promptLists = fc.array(
  fc
    .array(fc.integer({ min: 0, max: vocabSize - 1 }), { minLength: 1, maxLength: 8 })
    .map((tokens) => Int32Array.from(tokens)),
  { minLength: 1, maxLength: 10 },
);
const samplings = fc.record({
  maxTokens: fc.integer({ min: 1, max: 8 }),
  temperature: fc.constantFrom(0, 0.5, 1),
  stopTokens: fc.constantFrom<number[]>([], [1], [0, 3]),
  seed: fc.integer({ min: 0, max: 1000 }),
});

test("every prompt finishes once, with the tokens it has alone, whatever the number of slots (G1, G2)", () => {
  fc.assert(
    fc.property(promptLists, samplings, fc.integer({ min: 1, max: 12 }), (prompts, sampling, size) => {
      const completions = run(size, prompts, sampling);
      expect([...completions.keys()].sort((a, b) => a - b)).toEqual(prompts.map((_, index) => index));
      expect(completions).toEqual(run(1, prompts, sampling));
      for (const [index, { tokens, logprobs, finishReason }] of completions) {
        const history = [...prompts[index]!];
        tokens.forEach((token, i) => {
          expect(logprobs[i]).toBeCloseTo(distribution(history, 0)[token]!, 5);
          expect(sampling.stopTokens.includes(token)).toBe(finishReason === "stop" && i === tokens.length - 1);
          history.push(token);
        });
        const full = tokens.length === sampling.maxTokens || history.length === contextLength;
        if (finishReason === "length") expect(full).toBe(true);
      }
    }),
  );
});

test("after a restart each completion is wholly of the old or wholly of the new model (G3)", () => {
  fc.assert(
    fc.property(promptLists, samplings, fc.integer({ min: 0, max: 15 }), (prompts, sampling, restartAt) => {
      const [old, renewed] = [run(3, prompts, sampling), run(3, prompts, sampling, 0)];
      for (const [index, completion] of run(3, prompts, sampling, restartAt)) {
        expect(completion).toEqual((completion.policyVersion === 0 ? old : renewed).get(index));
      }
    }),
  );
});
