/** What every generation engine promises, whatever runs the model. */
import type { Completion, Sampling, Weights } from "@treadle/contracts";
import type { CutCompletion, GenerateOptions, GenerationEngine, JoiningCompletion } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { sealWeights, weightsIdOf } from "../src/parameters.ts";

/** The vocabulary and the context that a tested model has. */
export const testedModel = { vocabSize: 7, contextLength: 6 };

export type Tested = {
  readonly engine: GenerationEngine;
  /** log-probabilities of tokens, each given those before it, by the weights that the engine has */
  readonly score: (tokens: Int32Array, temperature: number) => Promise<Float32Array>;
  /** those that the engine has, and others; versions are 0 */
  readonly weights: readonly [own: Weights, other: Weights];
  /** a token's draw depends on how often its engine was asked for more: what goes on elsewhere is another sample of the same distribution */
  readonly drawsByRequest?: true;
  /** each token is told of before the next */
  readonly tellsAtOnce?: true;
  readonly close: () => Promise<void>;
};

const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [[1, 2], [3], [4, 5, 6], [1, 2], [0, 0, 1], [6], [2, 3], [5], [1], [1, 4], [3, 3, 3]].map((tokens) =>
  Int32Array.from(tokens),
);
const every = Array.from({ length: testedModel.vocabSize }, (_, token) => token);

const tokensOf = (completions: readonly Completion[]) => completions.map(({ tokens }) => [...tokens]);
function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, digits: number) {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) expect(actual[i]).toBeCloseTo(expected[i]!, digits);
}
function expectAlike(actual: readonly Completion[], expected: readonly Completion[]) {
  expect(tokensOf(actual)).toEqual(tokensOf(expected));
  for (const [index, { logprobs }] of actual.entries()) expectClose(logprobs, expected[index]!.logprobs, 5);
}
const versioned = ({ parameters }: Weights, policyVersion: number) => sealWeights({ policyVersion, parameters });

export function describeGeneration(kind: string, lacks: string | undefined, create: () => Promise<Tested>): void {
  describe.skipIf(lacks)(`generation by an engine of kind ${kind}${lacks === undefined ? "" : `: ${lacks}`}`, () => {
    let tested: Tested;
    let engine: GenerationEngine;
    beforeAll(async () => {
      tested = await create();
      engine = tested.engine;
      await engine.restore();
    });
    afterAll(() => tested?.close());

    test("gives the log-probabilities of the distribution sampled from, those of teacher forcing", async () => {
      for (const temperature of [1, 0.5, 1.7]) {
        const completions = await engine.generate(prompts, { ...sampling, temperature });
        for (const [index, completion] of completions.entries()) {
          const prompt = prompts[index]!;
          const scored = await tested.score(Int32Array.of(...prompt, ...completion.tokens), temperature);
          expectClose(completion.logprobs, scored.subarray(prompt.length), 4);
          expect(completion).toMatchObject({ temperature, policyVersion: engine.policyVersion });
        }
      }
    });

    test("draws the same tokens by seed and key, whatever is beside and in whatever order", async () => {
      const keys = prompts.map((_, index) => 100 + index);
      const all = await engine.generate(prompts, sampling, { keys });
      const reversed = await engine.generate([...prompts].reverse(), sampling, { keys: [...keys].reverse() });
      expectAlike(reversed, [...all].reverse());
      const single = await Promise.all(
        prompts.map(async (prompt, index) => (await engine.generate([prompt], sampling, { keys: [keys[index]!] }))[0]!),
      );
      expectAlike(single, all);
      const others = await engine.generate(prompts, { ...sampling, seed: 10 }, { keys });
      expect(tokensOf(others)).not.toEqual(tokensOf(all));
      const otherKeys = await engine.generate(prompts, sampling, { keys: keys.map((key) => key + 50) });
      expect(tokensOf(otherKeys)).not.toEqual(tokensOf(all));
    });

    test("samples tokens as often as their probabilities say", async () => {
      const draws = 512;
      const completions = await engine.generate(Array(draws).fill(Int32Array.of(3)), { ...sampling, maxTokens: 1 });
      const probability = Math.exp(completions[0]!.logprobs[0]!);
      const share = completions.filter(({ tokens }) => tokens[0] === completions[0]!.tokens[0]).length / draws;
      expect(Math.abs(share - probability)).toBeLessThan(5 * Math.sqrt((probability * (1 - probability)) / draws));
    });

    test("ends at a stop token, at the limit, or where the context is full; greedy takes the likeliest", async () => {
      const [stopped] = await engine.generate([Int32Array.of(1)], { ...sampling, stopTokens: every });
      expect(stopped).toMatchObject({ finishReason: "stop", tokens: { length: 1 } });
      const [limited] = await engine.generate([Int32Array.of(1)], sampling);
      expect(limited).toMatchObject({ finishReason: "length", tokens: { length: 3 } });
      const [full] = await engine.generate([Int32Array.of(1, 2, 3, 4)], { ...sampling, maxTokens: 50 });
      expect(full).toMatchObject({ finishReason: "length", tokens: { length: 2 } });
      const [greedy] = await engine.generate([Int32Array.of(2)], { ...sampling, maxTokens: 1, temperature: 0 });
      const scores = await Promise.all(
        every.map(async (token) => (await tested.score(Int32Array.of(2, token), 1))[1]!),
      );
      expect(greedy!.tokens[0]).toBe(scores.indexOf(Math.max(...scores)));
      expect(greedy!.logprobs[0]).toBeCloseTo(Math.max(...scores), 4);
    });

    test("reports each completion once, when it ends", async () => {
      const seen: [number, Completion][] = [];
      const completions = await engine.generate(prompts, sampling, {
        onCompletion: (index, completion) => seen.push([index, completion]),
      });
      expect(seen.sort(([a], [b]) => a - b).map(([, completion]) => completion)).toEqual(completions);
    });

    test("goes on after what is appended, with the log-probabilities of the whole sequence", async () => {
      const asked = new Map<number, number>();
      const stops = { ...sampling, stopTokens: [0, 1, 2] };
      const completions = await engine.generate(prompts, stops, {
        extend: async (index, { finishReason }) => {
          expect(finishReason).toBe("stop");
          asked.set(index, (asked.get(index) ?? 0) + 1);
          return asked.get(index) === 1 ? Int32Array.of(3) : undefined;
        },
      });
      expect(asked.size).toBeGreaterThan(0);
      for (const [index, { tokens, logprobs }] of completions.entries()) {
        const prompt = prompts[index]!;
        const scored = await tested.score(Int32Array.of(...prompt, ...tokens), 1);
        tokens.forEach((token, i) => {
          if (logprobs[i] === 0) expect(token).toBe(3);
          else expect(logprobs[i]).toBeCloseTo(scored[prompt.length + i]!, 4);
        });
      }
      const failing = engine.generate(
        prompts,
        { ...sampling, stopTokens: every },
        {
          extend: () => Promise.reject(new Error("no such tool")),
        },
      );
      await expect(failing).rejects.toThrow("no such tool");
    });

    test("what joins a call is what it is from the start, whenever it comes, until the call is over", async () => {
      const keys = prompts.map((_, index) => 100 + index);
      const joining = (index: number) => ({ prompt: prompts[index]!, key: keys[index]! });
      const all = await engine.generate(prompts, sampling, { keys });
      const ended: number[] = [];
      let add!: (joining: JoiningCompletion) => number | undefined;
      const joined = await engine.generate(prompts.slice(0, 2), sampling, {
        keys: keys.slice(0, 2),
        join: (given) => {
          add = given;
          expect(add(joining(2))).toBe(2);
          for (const tokens of [[], Array(testedModel.contextLength).fill(1), [testedModel.vocabSize]])
            expect(() => add({ prompt: Int32Array.from(tokens), key: 1 })).toThrow(/prompt|token/);
        },
        onCompletion: (index) => {
          const next = 3 + ended.push(index) - 1;
          if (next < prompts.length) expect(add(joining(next))).toBe(next);
        },
      });
      expectAlike(joined, all);
      expect(ended.sort((a, b) => a - b)).toEqual([...prompts.keys()]);
      expect(add(joining(0))).toBeUndefined();
      const none = await engine.generate([], sampling, { join: (given) => void given(joining(4)) });
      expectAlike(none, [all[4]!]);
    });

    test("what is told of a completion that goes on is the start of what it becomes; an engine that tells nothing says so", async () => {
      const keys = prompts.map((_, index) => 100 + index);
      const told = prompts.map((): number[] => []);
      const all = await engine.generate(prompts, sampling, {
        keys,
        onProgress: (pieces) => {
          expect(engine.tellsProgress).toBe(true);
          for (const { index, attempt, from, tokens, logprobs } of pieces) {
            expect([attempt, logprobs.length]).toEqual([0, tokens.length]);
            expect(from).toBe(told[index]!.length);
            told[index]!.push(...tokens);
          }
        },
      });
      for (const [index, { tokens }] of all.entries()) {
        expect(told[index]).toEqual([...tokens.subarray(0, told[index]!.length)]);
        expect(told[index]!.length).toBeLessThan(tokens.length);
      }
      if (tested.tellsAtOnce) expect(told.filter(({ length }) => length > 0).length).toBeGreaterThan(0);
      expectAlike(await engine.generate(prompts, sampling, { keys }), all);
    });

    test("what has begun elsewhere is what it is without interruption, token for token, wherever it was cut", async () => {
      for (const temperature of tested.drawsByRequest ? [0] : [0, 1]) {
        const keys = prompts.map((_, index) => 100 + index);
        const whole = await engine.generate(prompts, { ...sampling, temperature }, { keys });
        for (const numHad of [1, 2]) {
          const cut = [...whole.entries()].filter(([, { tokens }]) => tokens.length > numHad);
          expect(cut.length).toBeGreaterThan(0);
          const rest = await engine.generate(
            [],
            { ...sampling, temperature },
            {
              join: (add) => {
                for (const [index, { tokens, logprobs }] of cut)
                  add({
                    ...{ prompt: prompts[index]!, key: keys[index]! },
                    begun: {
                      tokens: tokens.subarray(0, numHad),
                      logprobs: logprobs.subarray(0, numHad),
                      ...{ numAppended: 0, turnFrom: 0 },
                    },
                  });
              },
            },
          );
          expectAlike(
            rest,
            cut.map(([, completion]) => completion),
          );
        }
      }
      const begun = { tokens: Int32Array.of(1, 1, 1), logprobs: new Float32Array(3), numAppended: 0, turnFrom: 0 };
      await engine.generate([prompts[1]!], sampling, {
        join: (add) => expect(() => add({ prompt: prompts[1]!, key: 1, begun })).toThrow(/raise maxTokens/),
      });
    });

    test("a completion that is cut has what it chose so far, and the others keep their tokens; or none can be cut", async () => {
      const keys = prompts.map((_, index) => 100 + index);
      const all = await engine.generate(prompts, sampling, { keys });
      let cut: CutCompletion | undefined;
      const made = await engine.generate(prompts, sampling, {
        keys,
        join: (_add, given) => {
          cut = given;
        },
        onCompletion: () => cut?.(prompts.length - 1),
      });
      if (cut === undefined) return expectAlike(made, all);
      expectAlike(made.slice(0, -1), all.slice(0, -1));
      expect(all.at(-1)!.tokens.join()).toMatch(new RegExp(`^${made.at(-1)!.tokens.join()}`));
    });

    test("a completion is cut before it has begun, and while it is held, once; the others are what they are without it", async () => {
      const keys = prompts.map((_, index) => 100 + index);
      const stops = { ...sampling, stopTokens: every };
      const all = await engine.generate(prompts, stops, { keys });
      const held = new Set<number>();
      const told: number[] = [];
      let cut: CutCompletion | undefined;
      const made = await engine.generate(prompts, stops, {
        keys,
        join: (_add, given) => {
          cut = given;
          if (cut) expect([cut(1), cut(1)]).toEqual([true, false]);
        },
        extend: async (index) => {
          if (!cut || index !== 2) return undefined;
          held.add(index);
          expect([cut(index), cut(index)]).toEqual([true, false]);
          return new Promise(() => {});
        },
        onCompletion: (index) => told.push(index),
      });
      expect(told.toSorted((a, b) => a - b)).toEqual([...prompts.keys()]);
      expect(cut?.(0) ?? false).toBe(false);
      if (cut === undefined) return expectAlike(made, all);
      expect([...held]).toEqual([2]);
      const others = (of: readonly Completion[]) => of.filter((_, index) => index !== 1 && index !== 2);
      expectAlike(others(made), others(all));
      expect([made[1], made[2]]).toMatchObject([{ finishReason: "abort" }, { finishReason: "abort" }]);
      expect(made[2]!.tokens).toEqual(all[2]!.tokens);
    });

    test("what joins is extended, aborted and cancelled with the call", async () => {
      const stops = { ...sampling, stopTokens: every };
      const join: GenerateOptions["join"] = (add) => void add({ prompt: Int32Array.of(3), key: 7 });
      const asked: number[] = [];
      const extended = await engine.generate([Int32Array.of(1)], stops, {
        join,
        extend: async (index) => (asked.push(index) < 3 ? Int32Array.of(2) : undefined),
      });
      expect(extended).toHaveLength(2);
      expect(new Set(asked)).toEqual(new Set([0, 1]));
      const waits = (signal?: AbortSignal) => {
        let numAsked = 0;
        let held!: () => void;
        const areHeld = new Promise<void>((resolve) => {
          held = resolve;
        });
        const extend = () => {
          if (++numAsked === 2) held();
          return new Promise<undefined>(() => {});
        };
        return { areHeld, made: engine.generate([Int32Array.of(1)], stops, { join, extend, signal }) };
      };
      const aborted = waits();
      await aborted.areHeld;
      engine.abort();
      expect(await aborted.made).toMatchObject([{ finishReason: "abort" }, { finishReason: "abort" }]);
      const controller = new AbortController();
      const cancelled = waits(controller.signal);
      await cancelled.areHeld;
      controller.abort();
      await expect(cancelled.made).rejects.toMatchObject({ code: "call.cancelled" });
      expect(engine.idle()).toBeUndefined();
    });

    test("a completion that waits to be extended can be aborted", async () => {
      const stops = { ...sampling, stopTokens: every };
      let ask = () => {};
      const asked = new Promise<void>((resolve) => {
        ask = resolve;
      });
      const waiting = engine.generate([Int32Array.of(1)], stops, {
        extend: () => {
          ask();
          return new Promise(() => {});
        },
      });
      await asked;
      engine.abort();
      expect(await waiting).toMatchObject([{ finishReason: "abort", tokens: { length: 1 } }]);
    });

    test("abort ends what runs with what it has; the next call runs as usual", async () => {
      const expected = await engine.generate(prompts, sampling);
      const aborted = await engine.generate(prompts, sampling, { onCompletion: () => engine.abort() });
      aborted.forEach(({ tokens }, i) => {
        expect(expected[i]!.tokens.join()).toMatch(new RegExp(`^${tokens.join()}`));
      });
      expectAlike(await engine.generate(prompts, sampling), expected);
    });

    test("computes nothing while paused, can be aborted and cancelled then, and goes on afterwards", async () => {
      const expected = await engine.generate(prompts, sampling);
      await engine.pause();
      const controller = new AbortController();
      const aborted = engine.generate(prompts, sampling);
      const cancelled = engine.generate(prompts, sampling, { signal: controller.signal });
      controller.abort();
      await expect(cancelled).rejects.toMatchObject({ code: "call.cancelled" });
      engine.abort();
      expect((await aborted).every(({ finishReason, tokens }) => finishReason === "abort" && tokens.length === 0)).toBe(
        true,
      );
      const waiting = engine.generate(prompts, sampling);
      engine.resume();
      expectAlike(await waiting, expected);
      expect(engine.idle()).toBeUndefined();
    });

    test.each([
      ["an empty prompt", []],
      ["a prompt as long as the context", [1, 1, 1, 1, 1, 1]],
      ["a token outside the vocabulary", [7]],
    ])("refuses %s", async (_, tokens) => {
      const refused = { code: "engine.invalid-request" };
      await expect(engine.generate([Int32Array.from(tokens)], sampling)).rejects.toMatchObject(refused);
    });

    test("W3 starts completions over when weights arrive, so that each has one version and nothing stale", async () => {
      const [own, other] = tested.weights;
      const before = await engine.generate(prompts, sampling);
      await engine.loadWeights(versioned(other, 5));
      expect(engine.policyVersion).toBe(5);
      const expected = await engine.generate(prompts, sampling);
      expect(tokensOf(expected)).not.toEqual(tokensOf(before));
      await engine.loadWeights(versioned(own, 6));
      expectAlike(await engine.generate(prompts, sampling), before);
      await engine.pause();
      const running = engine.generate(prompts, sampling);
      await engine.loadWeights(versioned(other, 7));
      engine.resume();
      const completions = await running;
      expectAlike(completions, expected);
      for (const { policyVersion } of completions) expect(policyVersion).toBe(7);
      await engine.loadWeights(versioned(own, 8));
    });

    test("W3 tells its weights from others of the same version", async () => {
      const [own, other] = tested.weights;
      const [wanted, undone] = [versioned(own, 8), versioned(other, 8)];
      await engine.loadWeights(undone);
      const id = engine.weightsId;
      expect(id).toBeDefined();
      await engine.loadWeights(wanted);
      expect(engine.policyVersion).toBe(8);
      expect(engine.weightsId).not.toBe(id);
      await expect(engine.loadWeights({ ...undone, checksum: "0" })).rejects.toThrow();
      expect(engine.weightsId).toBe(weightsIdOf(wanted));
      await engine.loadWeights(undone);
      expect(engine.weightsId).toBe(id);
      await engine.loadWeights(wanted);
    });

    test("refuses weights that are not whole, or of another model, and stays as it was", async () => {
      const expected = await engine.generate(prompts, sampling);
      const [own] = tested.weights;
      const [first, ...rest] = own.parameters;
      const mismatch = { code: "engine.weights-mismatch" };
      await expect(engine.loadWeights({ ...own, checksum: "0" })).rejects.toMatchObject(mismatch);
      await expect(engine.loadWeights({ ...own, parameters: rest })).rejects.toMatchObject(mismatch);
      const renamed = sealWeights({ policyVersion: 9, parameters: [{ ...first!, name: "another" }, ...rest] });
      await expect(engine.loadWeights(renamed)).rejects.toMatchObject(mismatch);
      const infinite = { ...first!, data: first!.data.map(() => Number.POSITIVE_INFINITY) };
      const diverged = sealWeights({ policyVersion: 9, parameters: [infinite, ...rest] });
      await expect(engine.loadWeights(diverged)).rejects.toMatchObject(mismatch);
      expectAlike(await engine.generate(prompts, sampling), expected);
    });

    test("refuses to compute while released, and is restored as it was", async () => {
      const expected = await engine.generate(prompts, sampling);
      await engine.pause();
      const ended = expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "engine.released" });
      await engine.release();
      await ended;
      engine.resume();
      expect(engine.memory().residentBytes).toBe(0);
      await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "engine.released" });
      await engine.restore();
      await engine.restore();
      expectAlike(await engine.generate(prompts, sampling), expected);
    });
  });
}
