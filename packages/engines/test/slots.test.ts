import type { Completion, Sampling } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Slots } from "../src/embedded/slots.ts";
import { contextLength, distribution, promptLists, read, take } from "./slot-driver.ts";

/** Drives the slots to the end; before step `restartAt` the model changes to version 1. */
function run(
  size: number,
  prompts: readonly Int32Array[],
  sampling: Sampling,
  restartAt = Number.POSITIVE_INFINITY,
  chunk = 3,
) {
  const slots = new Slots(size, prompts, sampling, contextLength);
  const histories: number[][] = Array.from({ length: size }, () => []);
  const completions = new Map<number, Completion>();
  for (let step = 0; !slots.done; step++) {
    if (step === restartAt) slots.restart();
    const version = step >= restartAt ? 1 : 0;
    const readings = take(slots, histories, chunk);
    for (const [index, completion] of slots.advance(readings, read(readings, histories, version), version)) {
      expect(completions.has(index), "a prompt finished twice").toBe(false);
      completions.set(index, completion);
    }
  }
  return completions;
}

const samplings = fc.record({
  maxTokens: fc.integer({ min: 1, max: 8 }),
  temperature: fc.constantFrom(0, 0.5, 1),
  stopTokens: fc.constantFrom<number[]>([], [1], [0, 3]),
  seed: fc.integer({ min: 0, max: 1000 }),
});

test("every prompt finishes once, with the tokens it has alone, whatever the number of slots (SL1, SL2)", () => {
  fc.assert(
    fc.property(
      promptLists,
      samplings,
      fc.integer({ min: 1, max: 12 }),
      fc.integer({ min: 1, max: 20 }),
      (prompts, sampling, size, chunk) => {
        const completions = run(size, prompts, sampling, Number.POSITIVE_INFINITY, chunk);
        expect([...completions.keys()].sort((a, b) => a - b)).toEqual(prompts.map((_, index) => index));
        expect(completions).toEqual(run(1, prompts, sampling));
        for (const [index, { tokens, logprobs, finishReason }] of completions) {
          const history = [...prompts[index]!];
          tokens.forEach((token, i) => {
            const scaled = distribution(history, 0).map((logprob) => Math.exp(logprob / (sampling.temperature || 1)));
            expect(logprobs[i]).toBeCloseTo(Math.log(scaled[token]! / scaled.reduce((a, b) => a + b)), 5);
            expect(sampling.stopTokens.includes(token)).toBe(finishReason === "stop" && i === tokens.length - 1);
            history.push(token);
          });
          const full = tokens.length === sampling.maxTokens || history.length === contextLength;
          if (finishReason === "length") expect(full).toBe(true);
        }
      },
    ),
  );
});

test("after a restart each completion is wholly of the old or wholly of the new model (SL3)", () => {
  fc.assert(
    fc.property(promptLists, samplings, fc.integer({ min: 0, max: 15 }), (prompts, sampling, restartAt) => {
      const [old, renewed] = [run(3, prompts, sampling), run(3, prompts, sampling, 0)];
      for (const [index, completion] of run(3, prompts, sampling, restartAt)) {
        expect(completion).toEqual((completion.policyVersion === 0 ? old : renewed).get(index));
      }
    }),
  );
});

test("an extended sequence reads what is appended and goes on as if it had been its own, whoever waits beside it (SL2, SL4)", () => {
  /** Appends the first stop token's neighbour twice, then ends. */
  const answer = (completion: Completion): Int32Array | undefined =>
    completion.tokens.filter((token) => token === 1).length <= 2 ? Int32Array.of(2, 4) : undefined;
  const drive = (
    size: number,
    prompts: readonly Int32Array[],
    seed: number,
    delay: (index: number) => number,
    chunk = 4,
  ) => {
    const sampling: Sampling = { maxTokens: 6, temperature: 1, stopTokens: [1], seed };
    const slots = new Slots(size, prompts, sampling, contextLength, { isExtensible: true });
    const histories: number[][] = Array.from({ length: size }, () => []);
    const completions = new Map<number, Completion>();
    const due: { atStep: number; act: () => [number, Completion][] }[] = [];
    const note = (finished: [number, Completion][]) => {
      for (const [index, completion] of finished) {
        expect(completions.has(index)).toBe(false);
        completions.set(index, completion);
      }
    };
    for (let step = 0; !slots.done; step++) {
      for (const item of due.splice(0)) {
        if (item.atStep <= step) note(item.act());
        else due.push(item);
      }
      if (slots.done || slots.isHeld) continue;
      const readings = take(slots, histories, chunk);
      note(slots.advance(readings, read(readings, histories, 0), 0));
      for (const held of slots.takeHeld()) {
        due.push({
          atStep: step + 1 + delay(held.index),
          act: () => slots.extend(held, answer(held.completion), 0),
        });
      }
    }
    return completions;
  };
  fc.assert(
    fc.property(
      promptLists,
      fc.integer({ min: 0, max: 1000 }),
      fc.integer({ min: 1, max: 12 }),
      fc.func(fc.integer({ min: 0, max: 5 })),
      (prompts, seed, size, delay) => {
        const completions = drive(size, prompts, seed, delay);
        expect(completions).toEqual(drive(1, prompts, seed, () => 0));
        expect(completions.size).toBe(prompts.length);
        for (const [index, { tokens, logprobs, finishReason }] of completions) {
          const history = [...prompts[index]!];
          let numAppended = 0;
          for (let i = 0; i < tokens.length; i++) {
            const isAppended = logprobs[i] === 0;
            if (isAppended) expect(tokens[i]).toBe(++numAppended % 2 === 1 ? 2 : 4);
            else expect(logprobs[i]).toBeCloseTo(distribution(history, 0)[tokens[i]!]!, 5);
            history.push(tokens[i]!);
          }
          expect(history.length).toBeLessThanOrEqual(contextLength);
          expect(tokens.length - numAppended).toBeLessThanOrEqual(6);
          if (finishReason === "stop") expect(tokens.at(-1)).toBe(1);
        }
      },
    ),
  );
});

test("samples of one prompt read it once, but for its last token (SL5)", () => {
  const prompts = [[1, 2, 3, 4], [2, 2], [1, 2, 3, 4], [1, 2, 3, 4], [2, 2], [3]].map((one) => Int32Array.from(one));
  const slots = new Slots(6, prompts, { maxTokens: 2, temperature: 1, stopTokens: [], seed: 0 }, contextLength);
  const histories: number[][] = prompts.map(() => []);
  let numRead = 0;
  while (!slots.done) {
    const readings = take(slots, histories, 100);
    numRead += readings.reduce((sum, { tokens }) => sum + tokens.length, 0);
    slots.advance(readings, read(readings, histories, 0), 0);
  }
  const [wholePrompts, lastTokens, chosen] = [4 + 2 + 1, 2 + 1, prompts.length];
  expect(numRead).toBe(wholePrompts + lastTokens + chosen);
});

test("an answer for a sequence that has begun again is ignored (SL4)", () => {
  const sampling: Sampling = { maxTokens: 6, temperature: 0, stopTokens: [0, 1, 2, 3, 4], seed: 0 };
  const slots = new Slots(1, [Int32Array.of(1)], sampling, contextLength, { isExtensible: true });
  const logprobs = Float32Array.of(-1, -2, -2, -2, -2);
  slots.advance(slots.next(8).readings, logprobs, 0);
  const [early] = slots.takeHeld();
  slots.restart();
  expect(slots.isHeld).toBe(false);
  expect(slots.extend(early!, undefined, 0)).toEqual([]);
  slots.advance(slots.next(8).readings, logprobs, 1);
  const [late] = slots.takeHeld();
  expect(slots.isHeld).toBe(true);
  expect(slots.extend(late!, undefined, 1)).toMatchObject([[0, { finishReason: "stop", policyVersion: 1 }]]);
  expect(slots.done).toBe(true);
});
