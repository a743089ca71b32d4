/**
 * What every engine that generates has to keep.
 *
 *     const { cases, close } = generationConformance(create);
 *     for (const { name, run } of cases) test(name, run);
 *     after(close);
 */
import assert from "node:assert/strict";
import type { Completion, FinishReason } from "@treadle/contracts";
import type { CutCompletion, GenerateOptions, JoiningCompletion } from "../engine.ts";
import { sealWeights, weightsIdOf } from "../parameters.ts";
import {
  assertAlike,
  assertClose,
  assertRefused,
  type Conformance,
  type ConformanceOptions,
  casesOver,
  conformingModel,
  tokensOf,
  versioned,
} from "./conformance.ts";
import { newWeightsPromises } from "./new-weights-conformance.ts";
import { every, prompts, sampling, type TestedGeneration, watched } from "./tested-generation.ts";

export type { TestedGeneration } from "./tested-generation.ts";

const invalid = { code: "engine.invalid-request" };
const reasonsOf = (completions: readonly Completion[]) => completions.map(({ finishReason }) => finishReason);
function assertEnded(completion: Completion | undefined, reason: FinishReason, numTokens: number): void {
  assert.deepEqual([completion?.finishReason, completion?.tokens.length], [reason, numTokens]);
}
function assertBegins(whole: Completion, part: Completion): void {
  assert.deepEqual([...whole.tokens.subarray(0, part.tokens.length)], [...part.tokens]);
}

/** A case that is over has left nothing that runs, or keeps others from running. */
function settle({ engine }: TestedGeneration): void {
  try {
    engine.resume();
    engine.abort();
  } catch {
    // The case that has failed says more.
  }
}

export function generationConformance(
  create: () => Promise<TestedGeneration>,
  options?: ConformanceOptions,
): Conformance {
  const restored = async (): Promise<TestedGeneration> => {
    const tested = await create();
    await tested.engine.restore();
    return tested;
  };
  return casesOver<TestedGeneration>(
    restored,
    {
      "gives the log-probabilities of the distribution sampled from, those of teacher forcing": async ({
        engine,
        score,
      }) => {
        for (const temperature of [1, 0.5, 1.7]) {
          const completions = await engine.generate(prompts, { ...sampling, temperature });
          for (const [index, completion] of completions.entries()) {
            const prompt = prompts[index]!;
            const scored = await score(Int32Array.of(...prompt, ...completion.tokens), temperature);
            assertClose(completion.logprobs, scored.subarray(prompt.length), 5e-5);
            assert.equal(completion.temperature, temperature);
            assert.equal(completion.policyVersion, engine.policyVersion);
          }
        }
      },

      "draws the same tokens by seed and key, whatever is beside and in whatever order": async ({ engine }) => {
        const keys = prompts.map((_, index) => 100 + index);
        const all = await engine.generate(prompts, sampling, { keys });
        const reversed = await engine.generate([...prompts].reverse(), sampling, { keys: [...keys].reverse() });
        assertAlike(reversed, [...all].reverse());
        const single = await Promise.all(
          prompts.map(
            async (prompt, index) => (await engine.generate([prompt], sampling, { keys: [keys[index]!] }))[0]!,
          ),
        );
        assertAlike(single, all);
        const others = await engine.generate(prompts, { ...sampling, seed: 10 }, { keys });
        assert.notDeepEqual(tokensOf(others), tokensOf(all));
        const otherKeys = await engine.generate(prompts, sampling, { keys: keys.map((key) => key + 50) });
        assert.notDeepEqual(tokensOf(otherKeys), tokensOf(all));
      },

      "samples tokens as often as their probabilities say": async ({ engine }) => {
        const draws = 512;
        const completions = await engine.generate(Array(draws).fill(Int32Array.of(3)), { ...sampling, maxTokens: 1 });
        const probability = Math.exp(completions[0]!.logprobs[0]!);
        const share = completions.filter(({ tokens }) => tokens[0] === completions[0]!.tokens[0]).length / draws;
        const tolerance = 5 * Math.sqrt((probability * (1 - probability)) / draws);
        assert.ok(
          Math.abs(share - probability) < tolerance,
          `a token of probability ${probability} is drawn in ${share}`,
        );
      },

      "ends at a stop token, at the limit, or where the context is full; greedy takes the likeliest": async ({
        engine,
        score,
      }) => {
        const [stopped] = await engine.generate([Int32Array.of(1)], { ...sampling, stopTokens: every });
        assertEnded(stopped, "stop", 1);
        const [limited] = await engine.generate([Int32Array.of(1)], sampling);
        assertEnded(limited, "length", 3);
        const [full] = await engine.generate([Int32Array.of(1, 2, 3, 4)], { ...sampling, maxTokens: 50 });
        assertEnded(full, "length", 2);
        const [greedy] = await engine.generate([Int32Array.of(2)], { ...sampling, maxTokens: 1, temperature: 0 });
        const scores = await Promise.all(every.map(async (token) => (await score(Int32Array.of(2, token), 1))[1]!));
        assert.equal(greedy!.tokens[0], scores.indexOf(Math.max(...scores)));
        assertClose(greedy!.logprobs, [Math.max(...scores)], 5e-5);
      },

      "reports each completion once, when it ends": async ({ engine }) => {
        const seen: [number, Completion][] = [];
        const completions = await engine.generate(prompts, sampling, {
          onCompletion: (index, completion) => seen.push([index, completion]),
        });
        assert.deepEqual(
          seen.sort(([a], [b]) => a - b).map(([, completion]) => completion),
          completions,
        );
      },

      "goes on after what is appended, with the log-probabilities of the whole sequence": async ({ engine, score }) => {
        const asked = new Map<number, number>();
        const stops = { ...sampling, stopTokens: [0, 1, 2] };
        const completions = await engine.generate(prompts, stops, {
          extend: async (index, { finishReason }) => {
            assert.equal(finishReason, "stop");
            asked.set(index, (asked.get(index) ?? 0) + 1);
            return asked.get(index) === 1 ? Int32Array.of(3) : undefined;
          },
        });
        assert.ok(asked.size > 0);
        for (const [index, { tokens, logprobs }] of completions.entries()) {
          const prompt = prompts[index]!;
          const scored = await score(Int32Array.of(...prompt, ...tokens), 1);
          tokens.forEach((token, i) => {
            if (logprobs[i] === 0) assert.equal(token, 3);
            else assertClose([logprobs[i]!], [scored[prompt.length + i]!], 5e-5);
          });
        }
        const failing = engine.generate(
          prompts,
          { ...sampling, stopTokens: every },
          {
            extend: () => Promise.reject(new Error("no such tool")),
          },
        );
        await assert.rejects(failing, /no such tool/);
      },

      "what joins a call is what it is from the start, whenever it comes, until the call is over": async ({
        engine,
      }) => {
        const keys = prompts.map((_, index) => 100 + index);
        const joining = (index: number) => ({ prompt: prompts[index]!, key: keys[index]! });
        const all = await engine.generate(prompts, sampling, { keys });
        const ended: number[] = [];
        let add!: (joining: JoiningCompletion) => number | undefined;
        const joined = await engine.generate(prompts.slice(0, 2), sampling, {
          keys: keys.slice(0, 2),
          join: (given) => {
            add = given;
            assert.equal(add(joining(2)), 2);
            for (const tokens of [[], Array(conformingModel.contextLength).fill(1), [conformingModel.vocabSize]])
              assert.throws(() => add({ prompt: Int32Array.from(tokens), key: 1 }), /prompt|token/);
          },
          onCompletion: (index) => {
            const next = 3 + ended.push(index) - 1;
            if (next < prompts.length) assert.equal(add(joining(next)), next);
          },
        });
        assertAlike(joined, all);
        assert.deepEqual(
          ended.sort((a, b) => a - b),
          [...prompts.keys()],
        );
        assert.equal(add(joining(0)), undefined);
        const none = await engine.generate([], sampling, { join: (given) => void given(joining(4)) });
        assertAlike(none, [all[4]!]);
      },

      "what is told of a completion that goes on is the start of what it becomes; an engine that tells nothing says so":
        async ({ engine, tellsAtOnce }) => {
          const keys = prompts.map((_, index) => 100 + index);
          const told = prompts.map((): number[] => []);
          const all = await engine.generate(prompts, sampling, {
            keys,
            onProgress: (pieces) => {
              assert.equal(engine.tellsProgress, true);
              for (const { index, attempt, from, tokens, logprobs } of pieces) {
                assert.deepEqual([attempt, logprobs.length], [0, tokens.length]);
                assert.equal(from, told[index]!.length);
                told[index]!.push(...tokens);
              }
            },
          });
          for (const [index, { tokens }] of all.entries()) {
            assert.deepEqual(told[index], [...tokens.subarray(0, told[index]!.length)]);
            assert.ok(told[index]!.length < tokens.length);
          }
          if (tellsAtOnce) assert.ok(told.some(({ length }) => length > 0));
          assertAlike(await engine.generate(prompts, sampling, { keys }), all);
        },

      "what has begun elsewhere is what it is without interruption, token for token, wherever it was cut": async ({
        engine,
        drawsByRequest,
      }) => {
        for (const temperature of drawsByRequest ? [0] : [0, 1]) {
          const keys = prompts.map((_, index) => 100 + index);
          const whole = await engine.generate(prompts, { ...sampling, temperature }, { keys });
          for (const numHad of [1, 2]) {
            const cut = [...whole.entries()].filter(([, { tokens }]) => tokens.length > numHad);
            assert.ok(cut.length > 0);
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
            assertAlike(
              rest,
              cut.map(([, completion]) => completion),
            );
          }
        }
        const begun = { tokens: Int32Array.of(1, 1, 1), logprobs: new Float32Array(3), numAppended: 0, turnFrom: 0 };
        await engine.generate([prompts[1]!], sampling, {
          join: (add) => assert.throws(() => add({ prompt: prompts[1]!, key: 1, begun }), invalid),
        });
      },

      "a completion that is cut has what it chose so far, and the others keep their tokens; or none can be cut":
        async ({ engine }) => {
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
          if (cut === undefined) return assertAlike(made, all);
          assertAlike(made.slice(0, -1), all.slice(0, -1));
          assertBegins(all.at(-1)!, made.at(-1)!);
        },

      "a completion is cut before it has begun, and while it is held, once; the others are what they are without it":
        async ({ engine }) => {
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
              if (cut) assert.deepEqual([cut(1), cut(1)], [true, false]);
            },
            extend: async (index) => {
              if (!cut || index !== 2) return undefined;
              held.add(index);
              assert.deepEqual([cut(index), cut(index)], [true, false]);
              return new Promise(() => {});
            },
            onCompletion: (index) => told.push(index),
          });
          assert.deepEqual(
            told.toSorted((a, b) => a - b),
            [...prompts.keys()],
          );
          assert.equal(cut?.(0) ?? false, false);
          if (cut === undefined) return assertAlike(made, all);
          assert.deepEqual([...held], [2]);
          const others = (of: readonly Completion[]) => of.filter((_, index) => index !== 1 && index !== 2);
          assertAlike(others(made), others(all));
          assert.deepEqual(reasonsOf([made[1]!, made[2]!]), ["abort", "abort"]);
          assert.deepEqual(made[2]!.tokens, all[2]!.tokens);
        },

      "what joins is extended, aborted and cancelled with the call": async ({ engine }) => {
        const stops = { ...sampling, stopTokens: every };
        const join: GenerateOptions["join"] = (add) => void add({ prompt: Int32Array.of(3), key: 7 });
        const asked: number[] = [];
        const extended = await engine.generate([Int32Array.of(1)], stops, {
          join,
          extend: async (index) => (asked.push(index) < 3 ? Int32Array.of(2) : undefined),
        });
        assert.equal(extended.length, 2);
        assert.deepEqual(new Set(asked), new Set([0, 1]));
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
        assert.deepEqual(reasonsOf(await aborted.made), ["abort", "abort"]);
        const controller = new AbortController();
        const cancelled = waits(controller.signal);
        await cancelled.areHeld;
        controller.abort();
        await assertRefused(cancelled.made, "call.cancelled");
        assert.equal(engine.idle(), undefined);
      },

      "a completion that waits to be extended can be aborted": async ({ engine }) => {
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
        assertEnded((await waiting)[0], "abort", 1);
      },

      "abort ends what runs with what it has; the next call runs as usual": async ({ engine }) => {
        const expected = await engine.generate(prompts, sampling);
        const aborted = await engine.generate(prompts, sampling, { onCompletion: () => engine.abort() });
        aborted.forEach(({ tokens }, i) => {
          assert.deepEqual([...expected[i]!.tokens.subarray(0, tokens.length)], [...tokens]);
        });
        assertAlike(await engine.generate(prompts, sampling), expected);
      },

      "computes nothing while paused, can be aborted and cancelled then, and goes on afterwards": async ({
        engine,
      }) => {
        const expected = await engine.generate(prompts, sampling);
        await engine.pause();
        try {
          const controller = new AbortController();
          const aborted = engine.generate(prompts, sampling);
          const cancelled = engine.generate(prompts, sampling, { signal: controller.signal });
          controller.abort();
          await assertRefused(cancelled, "call.cancelled");
          engine.abort();
          assert.equal(
            (await aborted).every(({ finishReason, tokens }) => finishReason === "abort" && tokens.length === 0),
            true,
          );
          const waiting = engine.generate(prompts, sampling);
          engine.resume();
          assertAlike(await waiting, expected);
        } finally {
          engine.resume();
        }
        assert.equal(engine.idle(), undefined);
      },

      "is not idle while something is computed or waits to be, and says when it is": async ({ engine }) => {
        assert.equal(engine.idle(), undefined);
        await engine.pause();
        try {
          const waiting = engine.generate(prompts, sampling);
          const idle = engine.idle();
          assert.notEqual(idle, undefined, "it has to be busy while what it was asked for waits");
          engine.resume();
          await waiting;
          await idle;
        } finally {
          engine.resume();
        }
        assert.equal(engine.idle(), undefined);
      },

      "an order changes no token, and gives the places to what goes first": async ({ engine, places }) => {
        const keys = prompts.map((_, index) => 100 + index);
        const one = { ...sampling, maxTokens: 1 };
        const all = await engine.generate(prompts, one, { keys });
        for (const sign of [-1, 1]) {
          const priority = (index: number) => sign * index;
          const waiting = new Set(prompts.keys());
          const ordered = await engine.generate(prompts, one, {
            ...{ keys, order: { priority } },
            onCompletion: (index) => {
              waiting.delete(index);
              const before = [...waiting].filter((other) => priority(other) > priority(index));
              // Those are computed, too: there is no place for more.
              assert.ok(
                places === undefined || before.length < places,
                `'${index}' has ended before '${before}', which go first`,
              );
            },
          });
          assertAlike(ordered, all);
        }
      },

      "refuses an empty prompt, one as long as the context, and a token outside of the vocabulary": async ({
        engine,
      }) => {
        for (const tokens of [[], Array(conformingModel.contextLength).fill(1), [conformingModel.vocabSize]])
          await assertRefused(engine.generate([Int32Array.from(tokens)], sampling), "engine.invalid-request");
      },

      "W3 starts completions over when weights arrive, so that each has one version and nothing stale": async ({
        engine,
        weights,
      }) => {
        const [own, other] = weights;
        const before = await engine.generate(prompts, sampling);
        await engine.loadWeights(versioned(other, 5));
        assert.equal(engine.policyVersion, 5);
        const expected = await engine.generate(prompts, sampling);
        assert.notDeepEqual(tokensOf(expected), tokensOf(before));
        await engine.loadWeights(versioned(own, 6));
        assertAlike(await engine.generate(prompts, sampling), before);
        await engine.pause();
        const running = engine.generate(prompts, sampling);
        try {
          await engine.loadWeights(versioned(other, 7));
        } finally {
          engine.resume();
        }
        const completions = await running;
        assertAlike(completions, expected);
        for (const { policyVersion } of completions) assert.equal(policyVersion, 7);
        await engine.loadWeights(versioned(own, 8));
      },

      "W3 tells its weights from others of the same version": async ({ engine, weights }) => {
        const [own, other] = weights;
        const [wanted, undone] = [versioned(own, 8), versioned(other, 8)];
        await engine.loadWeights(undone);
        const id = engine.weightsId;
        assert.notEqual(id, undefined);
        await engine.loadWeights(wanted);
        assert.equal(engine.policyVersion, 8);
        assert.notEqual(engine.weightsId, id);
        await assertRefused(engine.loadWeights({ ...undone, checksum: "0" }), "engine.weights-mismatch");
        assert.equal(engine.weightsId, weightsIdOf(wanted));
        await engine.loadWeights(undone);
        assert.equal(engine.weightsId, id);
        await engine.loadWeights(wanted);
      },

      "refuses weights that are not whole, or of another model, and stays as it was": async ({ engine, weights }) => {
        const expected = await engine.generate(prompts, sampling);
        const [own] = weights;
        const [first, ...rest] = own.parameters;
        const mismatch = "engine.weights-mismatch";
        await assertRefused(engine.loadWeights({ ...own, checksum: "0" }), mismatch);
        await assertRefused(engine.loadWeights({ ...own, parameters: rest }), mismatch);
        const renamed = sealWeights({ policyVersion: 9, parameters: [{ ...first!, name: "another" }, ...rest] });
        await assertRefused(engine.loadWeights(renamed), mismatch);
        const infinite = { ...first!, data: first!.data.map(() => Number.POSITIVE_INFINITY) };
        const diverged = sealWeights({ policyVersion: 9, parameters: [infinite, ...rest] });
        await assertRefused(engine.loadWeights(diverged), mismatch);
        assertAlike(await engine.generate(prompts, sampling), expected);
      },

      "refuses to compute while released, and is restored as it was": async ({ engine }) => {
        const expected = await engine.generate(prompts, sampling);
        await engine.pause();
        try {
          const running = engine.generate(prompts, sampling);
          const refused = await engine.release().then(
            () => undefined,
            (error: unknown) => ({ error }),
          );
          if (refused) {
            await assertRefused(Promise.reject(refused.error), "engine.busy");
            engine.resume();
            assertAlike(await running, expected);
            await engine.release();
          } else await assertRefused(running, "engine.released");
        } finally {
          engine.resume();
        }
        assert.equal(engine.memory().residentBytes, 0);
        await assertRefused(engine.generate(prompts, sampling), "engine.released");
        await engine.restore();
        await engine.restore();
        assertAlike(await engine.generate(prompts, sampling), expected);
      },
      ...newWeightsPromises,
    },
    options,
    { watch: watched, settle },
  );
}
