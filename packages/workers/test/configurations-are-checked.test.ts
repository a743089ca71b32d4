import type { RewardRegistry } from "@treadle/learning";
import { describe, expect, test } from "vitest";
import { RolloutConfig, RolloutWorker } from "../src/index.ts";

const model = { vocabSize: 6, layers: 1, width: 8, heads: 1, contextLength: 8 };
const sound = { model, alphabet: "abc=", groupSize: 2, maxTokens: 2, reward: { name: "arithmetic" } };
const check = (workerClass: typeof RolloutWorker, changes: object) => () =>
  workerClass.checkConfig(RolloutConfig.parse({ ...sound, ...changes }));

describe("what no rank could work with is refused before any starts", () => {
  test("a vocabulary without room for the alphabet, padding and stop", () => {
    expect(check(RolloutWorker, {})).not.toThrow();
    expect(check(RolloutWorker, { alphabet: "abcd=" })).toThrow(
      "'model.vocabSize' is '6', but the alphabet 'abcd=' needs '7'",
    );
  });

  test("a reward that nobody has registered, or with options that it does not take", () => {
    expect(check(RolloutWorker, { reward: { name: "arithmetik" } })).toThrow(
      /'arithmetik': allowed is one of 'arithmetic'/,
    );
    expect(check(RolloutWorker, { reward: { name: "arithmetic", partialCredit: 2 } })).toThrow(/partialCredit/);
  });

  test("but a reward of a subclass counts", () => {
    class LetterRolloutWorker extends RolloutWorker {
      protected override rewards(): RewardRegistry {
        return super.rewards().with({ name: "letter", create: () => ({ name: "letter", score: () => 1 }) });
      }
    }
    expect(check(LetterRolloutWorker, { reward: { name: "letter" } })).not.toThrow();
    expect(check(RolloutWorker, { reward: { name: "letter" } })).toThrow("'letter'");
  });
});
