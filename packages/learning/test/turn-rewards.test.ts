/** What turns earn reaches the advantages of their tokens; what an episode earns stays all that it earns. */
import type { Episode } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  AlgorithmConfig,
  checkEpisode,
  createAlgorithm,
  type Reward,
  scoreCompletion,
  scoreTurns,
} from "../src/index.ts";
import { makeEpisode } from "../src/testing/index.ts";

/** Prompt, two turns of two tokens, and a tool's answer of one between them. */
const mask = Float32Array.of(0, 1, 1, 0, 1, 1);
const twoTurns = (given: Partial<Episode>): Episode =>
  makeEpisode({ tokens: Int32Array.of(2, 3, 4, 5, 6, 7), mask, values: new Float32Array(6), ...given });
const turns = [
  { end: 3, reward: 2 },
  { end: 6, reward: -1 },
];
const advantagesOf = (config: object, ...episodes: Episode[]): number[][] => {
  const algorithm = createAlgorithm(AlgorithmConfig.parse(config));
  return algorithm.advantages([{ promptId: "prompt", episodes }]).map(({ advantages }) => [...advantages]);
};
const undiscounted = { name: "ppo", discount: 1, lambda: 1, normaliseAdvantages: false };
const plain = { name: "reinforce++", kl: { placement: "none" } };

describe("TC1: what turns have earned comes with their last tokens", () => {
  test.each([undiscounted, plain])("$name: tokens of a turn are credited with that and what follows", (config) => {
    expect(advantagesOf(config, twoTurns({ reward: 1, turnRewards: turns }))).toEqual([[0, 1, 1, 0, -1, -1]]);
    // The rest of the reward comes with the last token.
    expect(advantagesOf(config, twoTurns({ reward: 11, turnRewards: turns }))).toEqual([[0, 11, 11, 0, 9, 9]]);
    expect(advantagesOf(config, twoTurns({ reward: 1 }))).toEqual([[0, 1, 1, 0, 1, 1]]);
  });

  test("ppo discounts each turn's reward by its own distance", () => {
    const half = { ...undiscounted, discount: 0.5 };
    // Steps are the policy's tokens: 2 comes with the second, -1 with the fourth.
    expect(advantagesOf(half, twoTurns({ reward: 1, turnRewards: turns }))).toEqual([[0, 0.875, 1.75, 0, -0.5, -1]]);
  });

  test("a baseline is taken off what is still to come", () => {
    const config = { name: "reinforce++-baseline", kl: { placement: "none" } };
    const [first] = advantagesOf(config, twoTurns({ reward: 1, turnRewards: turns }), twoTurns({ reward: 0 }));
    expect(first).toEqual([0, 0.5, 0.5, 0, -1.5, -1.5]);
  });

  test.each(["grpo", "dr-grpo", "rloo"])("%s compares what episodes have earned in all, whenever they have", (name) => {
    const others = [twoTurns({ reward: 0 }), twoTurns({ reward: 3 })];
    const withTurns = advantagesOf({ name }, twoTurns({ reward: 1, turnRewards: turns }), ...others);
    expect(withTurns).toEqual(advantagesOf({ name }, twoTurns({ reward: 1 }), ...others));
  });

  test("the first token's credit is the whole reward, whatever turns say of it", () => {
    const amount = fc.integer({ min: -1000, max: 1000 });
    fc.assert(
      fc.property(
        amount,
        fc.subarray([2, 3, 5, 6]),
        fc.array(amount, { minLength: 4, maxLength: 4 }),
        (reward, ends, amounts) => {
          const turnRewards = ends.map((end, turn) => ({ end, reward: amounts[turn] as number }));
          for (const config of [undiscounted, plain])
            expect(advantagesOf(config, twoTurns({ reward, turnRewards }))[0]?.[1]).toBe(reward);
        },
      ),
    );
  });

  test.each([
    [[{ end: 1, reward: 1 }], "a turn that ends at '1': allowed is behind a token of the policy's"],
    [[{ end: 4, reward: 1 }], "a turn that ends at '4'"],
    [[{ end: 7, reward: 1 }], "a turn that ends at '7'"],
    [[...turns].reverse(), "and after the turn before, which ends at '6'"],
    [[{ end: 3, reward: Number.NaN }], "has reward 'NaN' for a turn"],
    [[{ end: 3, reward: 1e16 }], "has reward '10000000000000000' for a turn"],
  ])("a turn that is none is refused: %j", (turnRewards, says) => {
    expect(() => checkEpisode(twoTurns({ turnRewards }))).toThrow(says);
  });
});

describe("a reward", () => {
  const prompt = { id: "p", tokens: Int32Array.of(2), metadata: { level: { of: [1, null] } } };
  const completion = { tokens: Int32Array.of(1), text: "b", turns: [{ text: "a", answer: "x" }, { text: "b" }] };
  const scoring = (score: Reward["score"]) => scoreTurns({ name: "own", score }, prompt, completion);

  test("is told the turns and the prompt's metadata as they are, and may judge each turn", async () => {
    const seen: unknown[] = [];
    const score: Reward["score"] = ({ metadata }, { turns: given }) => {
      seen.push(metadata, given);
      return { turns: [0.5, 1] };
    };
    expect(await scoring(score)).toEqual({ reward: 1.5, turns: [0.5, 1] });
    expect(seen).toEqual([prompt.metadata, completion.turns]);
    expect(await scoring(async () => ({ reward: 7, turns: [0.5, 1] }))).toEqual({ reward: 7, turns: [0.5, 1] });
    expect(await scoring(() => 3)).toEqual({ reward: 3 });
    expect(await scoreCompletion({ name: "own", score }, prompt, completion)).toBe(1.5);
    expect(
      await scoreCompletion({ name: "one", score: () => ({ turns: [2] }) }, prompt, {
        tokens: Int32Array.of(1),
        text: "",
      }),
    ).toBe(2);
  });

  test.each([
    [{ turns: [1] }, "has rewards of '1' turns: allowed is one for each of its '2' turns"],
    [{ turns: "ab" }, "has rewards of 'string' turns"],
    [{ turns: [1, Number.NaN] }, "is 'NaN' for turn '1': allowed is a finite number"],
    [{ turns: [1, 2], reward: Number.POSITIVE_INFINITY }, "is 'Infinity': allowed is a finite number"],
    [{}, "is an object of '': allowed is a finite number, or 'turns' with one for each turn"],
    [{ turn: [1, 2] }, "is an object of 'turn': allowed is a finite number, or 'turns' with one for each turn"],
    [null, "is 'null'"],
    [{ turns: [1e308, 1e308] }, "has turns that sum to 'Infinity': allowed is a finite number"],
    [Object.create(null), "is an object of ''"],
    [{ turns: [1, Object.create(null)] }, "is 'an object without a text' for turn '1'"],
  ])("that is none for its turns is refused, %#: %j", async (answer, says) => {
    await expect(scoring(() => answer as unknown as number)).rejects.toMatchObject({
      code: "learning.reward-failed",
      message: expect.stringContaining(`reward 'own' of prompt 'p' ${says}`),
    });
  });

  test.each([
    [Object.create(null), "an object without a text"],
    [Symbol("x"), "Symbol(x)"],
    [undefined, "undefined"],
  ])("that throws what is no error is told with its name, %#", async (thrown, says) => {
    const failing = scoring(() => {
      throw thrown;
    });
    await expect(failing).rejects.toMatchObject({
      code: "learning.reward-failed",
      message: `reward 'own' of prompt 'p' failed: ${says}`,
    });
  });
});
