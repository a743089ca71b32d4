import type { Completion, Sampling } from "@treadle/contracts";
import type { GenerationOrder, TransformerEngine } from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { referenceLogprobs } from "./reference-transformer.ts";
import { smallConfig, smallTransformer } from "./small-transformer.ts";

const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [[1, 2], [3], [4, 5, 6], [1, 2], [0, 0, 1], [6], [2, 3], [5], [1], [1, 4], [3, 3, 3]].map((tokens) =>
  Int32Array.from(tokens),
);

let engine: TransformerEngine;
beforeAll(async () => {
  engine = await smallTransformer();
});
afterAll(() => engine.close());

describe("generation", () => {
  test("gives the log-probabilities of the distribution sampled from, equal to the full forward pass and the float64 reference", async () => {
    const weights = Object.fromEntries(
      engine.exportWeights().parameters.map(({ name, data }) => [name, Float64Array.from(data)]),
    );
    for (const temperature of [1, 0.5, 1.7]) {
      const completions = await engine.generate(prompts, { ...sampling, temperature });
      for (const [index, completion] of completions.entries()) {
        expect(completion.temperature).toBe(temperature);
        const tokens = Int32Array.of(...prompts[index]!, ...completion.tokens);
        const temperatures = Float32Array.of(temperature);
        const scored = await engine.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures });
        const reference = referenceLogprobs(smallConfig, weights, [...tokens]);
        completion.tokens.forEach((token, i) => {
          const position = prompts[index]!.length + i;
          const sampledFrom = reference[position - 1]!.map((value) => Math.exp(value / temperature));
          const expected = Math.log(sampledFrom[token]! / sampledFrom.reduce((a, b) => a + b));
          expect(completion.logprobs[i]).toBeCloseTo(scored[position]!, temperature === 1 ? 5 : 4);
          expect(completion.logprobs[i]).toBeCloseTo(expected, 4);
        });
      }
    }
  });

  test("repeats its tokens for the same seed and changes them for another", async () => {
    const first = await engine.generate(prompts, sampling);
    expect(await engine.generate(prompts, sampling)).toEqual(first);
    expect(await engine.generate(prompts, { ...sampling, seed: 10 })).not.toEqual(first);
  });

  test("gives equal prompts in one call different samples", async () => {
    const same = await engine.generate(Array(8).fill(Int32Array.of(1)), sampling);
    expect(new Set(same.map(({ tokens }) => tokens.join())).size).toBeGreaterThan(3);
  });

  test("chooses the same tokens with more, fewer or other prompts beside (SL2), also when prompts wait for a slot (SL1)", async () => {
    const narrow = await smallTransformer({ slots: 2 });
    const all = await engine.generate(prompts, sampling);
    expect(await engine.generate(prompts.slice(0, 3), sampling)).toEqual(all.slice(0, 3));
    expect(await narrow.generate(prompts, sampling)).toEqual(all);
    await narrow.close();
  });

  test("gives what a key names the same bits, however calls are cut, ordered and run beside each other (SL2)", async () => {
    const named = prompts.map((prompt, key) => ({ prompt, key: 1000 + key }));
    const complete = (some: typeof named, on: TransformerEngine) =>
      on.generate(
        some.map(({ prompt }) => prompt),
        { ...sampling, temperature: 0.8 },
        { keys: some.map(({ key }) => key) },
      );
    const expected = new Map((await complete(named, engine)).map((completion, i) => [named[i]!.key, completion]));
    const narrow = await smallTransformer({ slots: 3 });
    const cuts = fc.record({
      order: fc.shuffledSubarray(named, { minLength: named.length }),
      sizes: fc.array(fc.integer({ min: 1, max: 5 }), { minLength: named.length }),
      isNarrow: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(cuts, async ({ order, sizes, isNarrow }) => {
        const calls: (typeof named)[] = [];
        for (let from = 0, call = 0; from < order.length; from += sizes[call++]!)
          calls.push(order.slice(from, from + sizes[call]!));
        const results = await Promise.all(calls.map((some) => complete(some, isNarrow ? narrow : engine)));
        calls.forEach((some, call) => {
          expect(results[call]).toEqual(some.map(({ key }) => expected.get(key)));
        });
      }),
      { numRuns: 25 },
    );
    await narrow.close();
    await expect(engine.generate(prompts, sampling, { keys: [1] })).rejects.toMatchObject({
      code: "engine.invalid-request",
    });
  });

  test("gives the same bits in any order, whatever is displaced or leaves its slot to another (SL2, SL7)", async () => {
    const narrow = await smallTransformer({ slots: 2 });
    const stops = { ...sampling, stopTokens: [0, 1, 2] };
    const complete = (on: TransformerEngine, { order, delays = [0] }: Order = {}) => {
      const asked = new Map<number, number>();
      return on.generate(prompts, stops, {
        order,
        extend: async (index) => {
          asked.set(index, (asked.get(index) ?? 0) + 1);
          for (let turn = delays[index % delays.length]!; turn > 0; turn--) await new Promise(setImmediate);
          return asked.get(index)! < 3 ? Int32Array.of(3) : undefined;
        },
      });
    };
    type Order = { readonly order?: GenerationOrder; readonly delays?: readonly number[] };
    const expected = await complete(engine);
    const orders = fc.record({
      priorities: fc.array(fc.double({ min: -10, max: 10, noNaN: true }), { minLength: 1 }),
      delays: fc.array(fc.integer({ min: 0, max: 12 }), { minLength: 1 }),
      spareCaches: fc.integer({ min: 0, max: 6 }),
      displace: fc.option(fc.record({ margin: fc.double({ min: 0, max: 1, noNaN: true }), minTokens: fc.constant(1) })),
    });
    await fc.assert(
      fc.asyncProperty(orders, async ({ priorities, delays, spareCaches, displace }) => {
        let numAsked = 0;
        const priority = () => priorities[numAsked++ % priorities.length]!;
        const order = { priority, spareCaches, displace: displace ?? undefined };
        expect(await complete(narrow, { order, delays })).toEqual(expected);
      }),
      { numRuns: 25 },
    );
    await narrow.close();
  });

  test.each<[string, GenerationOrder, RegExp]>([
    ["a priority that is no number", { priority: () => Number.NaN }, /priority of prompt '0' is 'NaN'/],
    ["half a cache", { priority: () => 0, spareCaches: 0.5 }, /spareCaches is '0.5'/],
    ["a negative margin", { priority: () => 0, displace: { margin: -1, minTokens: 1 } }, /margin is '-1'/],
    ["displacing at once", { priority: () => 0, displace: { margin: 0, minTokens: 0 } }, /minTokens is '0'/],
  ])("refuses an order with %s", async (_name, order, message) => {
    const refused = expect(engine.generate(prompts, sampling, { order })).rejects;
    await refused.toMatchObject({ code: "engine.invalid-request", message: expect.stringMatching(message) });
  });

  test.each<[object, string]>([
    [{ temperature: -1 }, "sampling.temperature is '-1': allowed is 0, or a number from 0.001 to 10000"],
    [{ temperature: Number.NaN }, "sampling.temperature is 'NaN': "],
    [{ temperature: 1e39 }, "sampling.temperature is '1e+39': allowed is 0, or"],
    [{ maxTokens: 0 }, "sampling.maxTokens is '0': "],
    [{ seed: -1 }, "sampling.seed is '-1': "],
    [{ temprature: 1 }, "temprature"],
  ])("refuses to sample by %j", async (given, message) => {
    const asked = async () => engine.generate(prompts, { ...sampling, ...given } as Sampling);
    await expect(asked()).rejects.toMatchObject({
      code: "engine.invalid-request",
      message: expect.stringContaining(message),
    });
  });

  test("at temperature 0 chooses the likeliest token", async () => {
    const [completion] = await engine.generate([Int32Array.of(2)], { ...sampling, temperature: 0 });
    const weights = Object.fromEntries(
      engine.exportWeights().parameters.map(({ name, data }) => [name, Float64Array.from(data)]),
    );
    const tokens = [2];
    for (const token of completion!.tokens) {
      const next = referenceLogprobs(smallConfig, weights, tokens).at(-1)!;
      expect(token).toBe(next.indexOf(Math.max(...next)));
      tokens.push(token);
    }
  });

  test("samples tokens as often as their probabilities say", async () => {
    const wide = await smallTransformer({ slots: 256 });
    const draws = 2048;
    const completions = await wide.generate(Array(draws).fill(Int32Array.of(3)), { ...sampling, maxTokens: 1 });
    const [probability] = [Math.exp(completions[0]!.logprobs[0]!)];
    const share = completions.filter(({ tokens }) => tokens[0] === completions[0]!.tokens[0]).length / draws;
    expect(Math.abs(share - probability!)).toBeLessThan(4 * Math.sqrt((probability! * (1 - probability!)) / draws));
    await wide.close();
  });

  test("ends at a stop token, at the limit, or where the context is full", async () => {
    const every = Array.from({ length: smallConfig.vocabSize }, (_, token) => token);
    const [stopped] = await engine.generate([Int32Array.of(1)], { ...sampling, stopTokens: every });
    expect(stopped).toMatchObject({ finishReason: "stop", tokens: { length: 1 } });
    const [limited] = await engine.generate([Int32Array.of(1)], sampling);
    expect(limited).toMatchObject({ finishReason: "length", tokens: { length: 3 } });
    const [full] = await engine.generate([Int32Array.of(1, 2, 3, 4)], { ...sampling, maxTokens: 50 });
    expect(full).toMatchObject({ finishReason: "length", tokens: { length: 2 } });
  });

  test("reports each completion once, when it ends", async () => {
    const seen = new Map<number, Completion>();
    const completions = await engine.generate(prompts, sampling, {
      onCompletion: (index, completion) => seen.set(index, completion),
    });
    expect([...seen].sort(([a], [b]) => a - b).map(([, completion]) => completion)).toEqual(completions);
  });

  test("goes on after what is appended, with the log-probabilities of the whole sequence, while others do not wait", async () => {
    const stops = { ...sampling, maxTokens: 3, stopTokens: [0, 1, 2] };
    const asked = new Map<number, number>();
    const completions = await engine.generate(prompts, stops, {
      extend: async (index) => {
        asked.set(index, (asked.get(index) ?? 0) + 1);
        if (index === 0) await new Promise((resolve) => setTimeout(resolve, 30));
        return asked.get(index) === 1 ? Int32Array.of(3) : undefined;
      },
    });
    expect(Math.max(...asked.values())).toBeGreaterThan(1);
    for (const [index, { tokens, logprobs }] of completions.entries()) {
      const row = Int32Array.of(...prompts[index]!, ...tokens);
      const scored = await engine.logprobs({ rows: 1, columns: row.length, tokens: row });
      tokens.forEach((token, i) => {
        if (logprobs[i] === 0) expect(token).toBe(3);
        else expect(logprobs[i]).toBe(scored[prompts[index]!.length + i]!);
      });
    }
  });

  test("a completion that waits to be extended can be aborted, and a failed extension fails its call", async () => {
    const every = Array.from({ length: smallConfig.vocabSize }, (_, token) => token);
    const stops = { ...sampling, stopTokens: every };
    const waiting = engine.generate(prompts.slice(0, 2), stops, { extend: () => new Promise(() => {}) });
    await new Promise((resolve) => setTimeout(resolve, 50));
    engine.abort();
    expect((await waiting).map(({ finishReason }) => finishReason)).toEqual(["abort", "abort"]);
    const failing = engine.generate(prompts, stops, { extend: () => Promise.reject(new Error("no such tool")) });
    await expect(failing).rejects.toThrow("no such tool");
  });

  test("abort ends running completions with what they have; the next call runs as usual", async () => {
    const expected = await engine.generate(prompts, sampling);
    const running = engine.generate(prompts, sampling, { onCompletion: () => engine.abort() });
    const aborted = await running;
    expect(aborted.some(({ finishReason }) => finishReason === "abort")).toBe(true);
    aborted.forEach(({ tokens }, i) => {
      expect(expected[i]!.tokens.join()).toMatch(new RegExp(`^${tokens.join()}`));
    });
    expect(await engine.generate(prompts, sampling)).toEqual(expected);
  });

  test("a paused engine computes no token until it is resumed, yet can be aborted and cancelled", async () => {
    await engine.pause();
    let ended = 0;
    const count = (running: Promise<unknown>) => running.finally(() => ended++);
    const waiting = count(engine.generate(prompts, sampling));
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(ended).toBe(0);
    const controller = new AbortController();
    const cancelled = engine.generate(prompts, sampling, { signal: controller.signal });
    controller.abort();
    await expect(cancelled).rejects.toMatchObject({ code: "call.cancelled" });
    engine.resume();
    await waiting;
    await engine.pause();
    const aborted = engine.generate(prompts, sampling);
    engine.abort();
    expect((await aborted).every(({ finishReason, tokens }) => finishReason === "abort" && tokens.length === 0)).toBe(
      true,
    );
    engine.resume();
  });

  test.each([
    ["an empty prompt", []],
    ["a prompt as long as the context", [1, 1, 1, 1, 1, 1]],
    ["a token outside the vocabulary", [7]],
  ])("refuses %s", async (_name, tokens) => {
    await expect(engine.generate([Int32Array.from(tokens)], sampling)).rejects.toMatchObject({
      code: "engine.invalid-request",
    });
  });
});
