import type { Completion } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import {
  EmulatedEngine,
  type GenerateOptions,
  type JoiningCompletion,
  sealWeights,
  TransformerEngine,
} from "../src/index.ts";

const config = { vocabSize: 9, layers: 1, width: 16, heads: 2, contextLength: 40, seed: 4, slots: 2 };
const sampling = { maxTokens: 12, temperature: 1, stopTokens: [1, 7], seed: 5 };
const prompts = [
  Int32Array.of(2, 3, 4),
  Int32Array.of(5),
  Int32Array.of(2, 3, 4),
  Int32Array.of(6, 2),
  Int32Array.of(3, 3),
];
const keys = [11, 12, 13, 14, 15];
/** What a tool says after a 7; everything else that stops has ended. */
const answer = Int32Array.of(8, 2);
const extend = async (_: number, { tokens }: Completion) => (tokens.at(-1) === 7 ? answer : undefined);

describe("a completion that joins a call", () => {
  test("SL9: is, bit for bit, what it is from the start, wherever it has begun", async () => {
    const engine = await TransformerEngine.create(config);
    const turns: Completion[][] = prompts.map(() => []);
    const whole = await engine.generate(prompts, sampling, {
      keys,
      extend: async (index, completion) => {
        turns[index]!.push(completion);
        return extend(index, completion);
      },
    });
    const called = turns.flatMap((all, index) =>
      all.filter(({ tokens }) => tokens.at(-1) === 7).map((completion, turn) => ({ index, completion, turn })),
    );
    expect(called.length, "some completion calls").toBeGreaterThan(0);
    for (const { index, completion, turn } of called) {
      const begun = {
        tokens: Int32Array.of(...completion.tokens, ...answer),
        logprobs: Float32Array.of(...completion.logprobs, 0, 0),
        numAppended: (turn + 1) * answer.length,
        turnFrom: completion.tokens.length + answer.length,
      };
      // Another engine of the same weights, in the midst of other completions.
      const elsewhere = await TransformerEngine.create(config);
      const joining: JoiningCompletion = { prompt: prompts[index]!, key: keys[index]!, begun };
      const made = await join(elsewhere, joining, extend);
      expect(made.at(-1)).toEqual(whole[index]);
      await elsewhere.close();
    }
    await engine.close();
  }, 120_000);

  test("shares the places of the others, and is refused once the call is over", async () => {
    const engine = await TransformerEngine.create(config);
    let add!: (joining: JoiningCompletion) => number | undefined;
    const options: GenerateOptions = {
      keys: keys.slice(0, 1),
      join: (given) => {
        add = given;
        for (const at of [1, 2, 3, 4]) expect(given({ prompt: prompts[at]!, key: keys[at]! })).toBe(at);
      },
    };
    const made = await engine.generate(prompts.slice(0, 1), sampling, options);
    expect(made).toEqual(await engine.generate(prompts, sampling, { keys }));
    expect(add({ prompt: prompts[0]!, key: 1 })).toBeUndefined();
    await engine.close();
  });

  test("joins from within the last completion of a call", async () => {
    for (const engine of [await TransformerEngine.create(config), EmulatedEngine.create({ slots: 1, vocabSize: 9 })]) {
      let add!: (joining: JoiningCompletion) => number | undefined;
      const ended: number[] = [];
      const made = await engine.generate(prompts.slice(0, 1), sampling, {
        keys: [11],
        join: (given) => {
          add = given;
        },
        onCompletion: (index) => {
          ended.push(index);
          if (index < 4) expect(add({ prompt: prompts[index + 1]!, key: keys[index + 1]! })).toBe(index + 1);
        },
      });
      expect(ended).toEqual([0, 1, 2, 3, 4]);
      expect(made).toEqual(await engine.generate(prompts, sampling, { keys }));
      await engine.close();
    }
  });

  test.each([
    ["no room in the context", { numTokens: 38, numAppended: 38 }, /joins with '40' tokens where at most 39/],
    ["chosen all that it may", { numTokens: 13, numAppended: 1 }, /joins with '12' chosen tokens where at most 11/],
  ])("SL9: is refused where it has %s, and the others go on", async (_, { numTokens, numAppended }, message) => {
    const tokens = new Int32Array(numTokens).fill(2);
    const begun = { tokens, logprobs: new Float32Array(numTokens), numAppended, turnFrom: numTokens };
    for (const engine of [
      await TransformerEngine.create(config),
      EmulatedEngine.create({ vocabSize: 9, contextLength: config.contextLength }),
    ]) {
      const made = await engine.generate([prompts[0]!], sampling, {
        keys: [11],
        join: (add) => {
          expect(() => add({ prompt: prompts[3]!, key: 14, begun })).toThrow(message);
        },
      });
      expect(made).toEqual(await engine.generate([prompts[0]!], sampling, { keys: [11] }));
      await engine.close();
    }
  });

  test.each([
    ["'1' log-probabilities", { logprobs: new Float32Array(1) }],
    ["'3' log-probabilities", { logprobs: new Float32Array(3) }],
    ["the versions '[[7,1]]'", { versions: [[7, 1]] }],
    [
      "the versions '[[7,1],[8,2]]'",
      {
        versions: [
          [7, 1],
          [8, 2],
        ],
      },
    ],
    [
      "the versions '[[7,-1],[8,3]]'",
      {
        versions: [
          [7, -1],
          [8, 3],
        ],
      },
    ],
    ["'numAppended' '3'", { numAppended: 3 }],
    ["'turnFrom' '0.5'", { turnFrom: 0.5 }],
    ["'turnFrom' '-1'", { turnFrom: -1 }],
  ] as const)("SL9: is refused with two tokens and %s", async (what, changed) => {
    const begun = {
      tokens: Int32Array.of(2, 2),
      logprobs: new Float32Array(2),
      numAppended: 0,
      turnFrom: 0,
      ...changed,
    };
    for (const engine of [
      await TransformerEngine.create(config),
      EmulatedEngine.create({ vocabSize: 9, contextLength: config.contextLength }),
    ]) {
      await engine.generate([prompts[0]!], sampling, {
        join: (add) => {
          expect(() => add({ prompt: prompts[3]!, key: 14, begun })).toThrow(`joins with '2' tokens and ${what}; give`);
        },
      });
      await engine.close();
    }
  });

  test("SL3: a completion that has begun elsewhere begins again when its weights change", async () => {
    const engine = await TransformerEngine.create(config);
    const weights = await (await TransformerEngine.create({ ...config, seed: 9 })).exportWeights();
    const begun = { tokens: Int32Array.of(2, 2, 7, 8), logprobs: new Float32Array(4), numAppended: 1, turnFrom: 4 };
    await engine.pause();
    const going = join(engine, { prompt: prompts[3]!, key: 14, begun });
    await engine.loadWeights(sealWeights({ ...weights, policyVersion: 1 }));
    engine.resume();
    const made = (await going).at(-1)!;
    expect(made.policyVersion).toBe(1);
    const [plain] = await engine.generate([prompts[3]!], sampling, { keys: [14] });
    expect(made).toEqual(plain);
    await engine.close();
  });
});

/** Others first; the one that joins comes last. */
function join(
  engine: TransformerEngine,
  joining: JoiningCompletion,
  extending?: GenerateOptions["extend"],
): Promise<Completion[]> {
  return engine.generate([prompts[1]!, prompts[4]!], sampling, {
    keys: [21, 22],
    extend: extending,
    join: (add) => void add(joining),
  });
}
