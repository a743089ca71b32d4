import type { Completion } from "@treadle/contracts";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type CutCompletion, EmulatedEngine, type GenerateOptions, TransformerEngine } from "../src/index.ts";

const sampling = { maxTokens: 14, temperature: 1, stopTokens: [1, 7], seed: 5 };
const prompts = [[2, 3, 4], [5], [2, 3, 4], [6, 2], [3, 3], [8], [2]].map((tokens) => Int32Array.from(tokens));
const keys = prompts.map((_, index) => 11 + index);
/** What a tool says after a 7; everything else that stops has ended. */
const extend = async (_: number, { tokens }: Completion) =>
  tokens.at(-1) === 7 && tokens.length < 30 ? Int32Array.of(8, 2) : undefined;

type Engine = TransformerEngine | EmulatedEngine;
const kinds: [string, () => Promise<Engine>][] = [
  [
    "embedded",
    () => TransformerEngine.create({ vocabSize: 9, layers: 1, width: 16, heads: 2, contextLength: 60, slots: 2 }),
  ],
  [
    "emulated",
    async () =>
      EmulatedEngine.create({
        slots: 2,
        vocabSize: 9,
        contextLength: 60,
        decode: { baseSeconds: 0.0004 },
        response: { medianTokens: 5 },
      }),
  ],
];

describe.each(kinds)("of an engine of kind '%s', a completion that is cut", (_, create) => {
  let engine: Engine;
  let whole: readonly Completion[];
  beforeAll(async () => {
    engine = await create();
    whole = await engine.generate(prompts, sampling, { keys, extend });
  });
  afterAll(() => engine.close());

  /** `when`: behind how many other ends each is cut; 0 is at once. */
  async function cutting(cuts: ReadonlyMap<number, number>, more: GenerateOptions = {}) {
    const told: [number, Completion][] = [];
    let cut: CutCompletion | undefined;
    const due = () => {
      for (const [index, when] of cuts) {
        if (when !== told.length || told.some(([ended]) => ended === index)) continue;
        expect(cut?.(index)).toBe(true);
        expect(told.filter(([ended]) => ended === index)).toHaveLength(1);
        expect(cut?.(index)).toBe(false);
      }
    };
    const made = await engine.generate(prompts, sampling, {
      keys,
      extend,
      join: (_add, given) => {
        cut = given;
        due();
      },
      onCompletion: (index, completion) => {
        told.push([index, completion]);
        due();
      },
      ...more,
    });
    expect(cut?.(0)).toBe(false);
    return { made, told };
  }

  test("SL10: has a prefix of what it would be, and the others are what they are without, bit for bit", async () => {
    const anyCuts = fc.array(fc.tuple(fc.nat(prompts.length - 1), fc.nat(prompts.length)), { maxLength: 5 });
    let numCut = 0;
    await fc.assert(
      fc.asyncProperty(anyCuts, async (cuts) => {
        const { made, told } = await cutting(new Map(cuts));
        expect(told.map(([index]) => index).sort()).toEqual([...prompts.keys()]);
        for (const [index, completion] of told) expect(made[index]).toEqual(completion);
        for (const [index, completion] of made.entries()) {
          const expected = whole[index]!;
          if (completion.finishReason !== "abort") expect(completion).toEqual(expected);
          else {
            numCut++;
            const { length } = completion.tokens;
            expect(completion.tokens).toEqual(expected.tokens.slice(0, length));
            expect(completion.logprobs).toEqual(expected.logprobs.slice(0, length));
          }
        }
      }),
      { numRuns: 40 },
    );
    expect(numCut).toBeGreaterThan(20);
  }, 60_000);

  test("SL10: while a tool works for it, is asked about no more, and what the tool says then is nothing", async () => {
    let answer!: (tokens: Int32Array) => void;
    let numAsked = 0;
    let asked: Completion | undefined;
    let cut!: CutCompletion;
    const generating = engine.generate(
      prompts.slice(0, 2),
      { ...sampling, stopTokens: [0, 1, 2, 3, 4, 5, 6, 7, 8] },
      {
        keys: keys.slice(0, 2),
        join: (_add, given) => {
          cut = given as CutCompletion;
        },
        extend: (index, completion) => {
          numAsked++;
          if (index === 1) return Promise.resolve(undefined);
          asked = completion;
          return new Promise((resolve) => {
            answer = resolve;
          });
        },
      },
    );
    while (numAsked < 2) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(cut(0)).toBe(true);
    answer(Int32Array.of(3));
    const [held, other] = await generating;
    expect(held).toEqual({ ...asked, finishReason: "abort" });
    expect(other).toMatchObject({ finishReason: "stop" });
    expect(engine.idle()).toBeUndefined();
  });

  test("ends while the engine is paused, also where it was the last", async () => {
    await engine.pause();
    let cut!: CutCompletion;
    const generating = engine.generate(prompts.slice(0, 3), sampling, {
      join: (_add, given) => {
        cut = given as CutCompletion;
      },
    });
    for (const index of [2, 0, 1]) expect(cut(index)).toBe(true);
    expect(cut(9)).toBe(false);
    expect((await generating).map(({ finishReason }) => finishReason)).toEqual(["abort", "abort", "abort"]);
    engine.resume();
  });
});

test("of two emulated completions that end at once, the first cannot take the tokens of the other", async () => {
  const engine = EmulatedEngine.create({ slots: 2, vocabSize: 9, response: { medianTokens: 6, spread: 0 } });
  let cut!: CutCompletion;
  const said: boolean[] = [];
  const made = await engine.generate([Int32Array.of(1), Int32Array.of(1)], sampling, {
    join: (_add, given) => {
      cut = given as CutCompletion;
    },
    onCompletion: (index) => said.push(cut(1 - index)),
  });
  expect(said).toEqual([false, false]);
  expect(made.map(({ tokens, finishReason }) => [tokens.length, finishReason])).toEqual([
    [6, "stop"],
    [6, "stop"],
  ]);
  await engine.close();
});
