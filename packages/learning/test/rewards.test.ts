import { TreadleError } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { builtInRewards, type Reward, scoreCompletion } from "../src/index.ts";

const prompt = { id: "12+34=@0.0", tokens: Int32Array.of(1), answer: "46" };
const completion = (text: string) => ({ tokens: Int32Array.of(), text });
const scoring = (score: Reward["score"]): Reward => ({ name: "mine", score });

describe("the arithmetic reward", () => {
  test("is 1 for exactly the answer and 0 for all else", async () => {
    const reward = builtInRewards.create({ name: "arithmetic" });
    const texts = ["46", "64", "4", "460", "046", " 46", ""];
    expect(await Promise.all(texts.map((text) => reward.score(prompt, completion(text))))).toEqual([
      1, 0, 0, 0, 0, 0, 0,
    ]);
  });

  test("gives a share for right characters when asked", async () => {
    const reward = builtInRewards.create({ name: "arithmetic", partialCredit: 0.5 });
    // 45: one of two right; 4: one of two; 463: two of three; 64: none
    const texts = ["46", "45", "4", "463", "64"];
    expect(await Promise.all(texts.map((text) => reward.score(prompt, completion(text))))).toEqual([
      1,
      0.25,
      0.25,
      0.5 * (2 / 3),
      0,
    ]);
  });

  test("needs an answer to compare with", async () => {
    const reward = builtInRewards.create({ name: "arithmetic" });
    const open = { id: "open", tokens: Int32Array.of(1) };
    await expect(scoreCompletion(reward, open, completion("1"))).rejects.toThrow(/prompt 'open' has no answer/);
  });
});

describe("the registry", () => {
  test("names an unknown reward, what there is, and the nearest", () => {
    expect(() => builtInRewards.create({ name: "aritmetic" }, "rollout.reward")).toThrow(
      "rollout.reward.name is 'aritmetic': allowed is one of 'arithmetic', 'exact', 'numeric', 'regex'; did you mean 'arithmetic'",
    );
  });

  test("takes plugins, and refuses a name twice", () => {
    const plugin = { name: "mine", create: () => scoring(() => 3) };
    const registry = builtInRewards.with(plugin);
    const { names } = builtInRewards;
    expect(registry.names).toEqual([...names, "mine"]);
    expect(registry.create({ name: "mine" }).score(prompt, completion(""))).toBe(3);
    expect(names).not.toContain("mine");
    expect(() => registry.with(plugin)).toThrow(/reward 'mine' is registered twice/);
  });
});

describe("scoring", () => {
  test("waits for asynchronous rewards", async () => {
    expect(
      await scoreCompletion(
        scoring(async () => 0.5),
        prompt,
        completion(""),
      ),
    ).toBe(0.5);
  });

  test("names the reward and the prompt when a plugin fails or answers no number", async () => {
    const throws = scoring(() => {
      throw new Error("sandbox is gone");
    });
    await expect(scoreCompletion(throws, prompt, completion(""))).rejects.toMatchObject({
      code: "learning.reward-failed",
      message: "reward 'mine' of prompt '12+34=@0.0' failed: sandbox is gone",
    });
    await expect(
      scoreCompletion(
        scoring(() => Number.NaN),
        prompt,
        completion(""),
      ),
    ).rejects.toThrow(/is 'NaN'/);
  });

  test("lets a cancellation through", async () => {
    const cancelled = new TreadleError("call.cancelled", "stopped");
    const reward = scoring(() => Promise.reject(cancelled));
    await expect(scoreCompletion(reward, prompt, completion(""))).rejects.toBe(cancelled);
  });
});
