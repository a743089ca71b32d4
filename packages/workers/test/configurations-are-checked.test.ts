import type { RewardRegistry } from "@treadle/learning";
import { describe, expect, test } from "vitest";
import { RolloutConfig, RolloutWorker } from "../src/index.ts";
import { checkDegrees } from "../src/rollout/degrees.ts";

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

  test("ranks of several devices where the engine generates on one, or knows no such number", () => {
    expect(check(RolloutWorker, { degrees: [1, 1] })).not.toThrow();
    expect(check(RolloutWorker, { degrees: [1, 2] })).toThrow(
      "'degrees' has a rank of '2' devices, but an engine of kind 'embedded' generates on one: allowed is 1 for each rank",
    );
    const emulated = { tokenTime: { 1: 0.02, 4: 0.01 } };
    expect(check(RolloutWorker, { degrees: [4, 1], emulated })).not.toThrow();
    expect(check(RolloutWorker, { degrees: [4, 2], emulated })).toThrow("nothing for '2' devices, but for 1, 4");
    expect(RolloutWorker.degrees(RolloutConfig.parse({ ...sound, degrees: [4, 1], emulated }))).toEqual([4, 1]);
  });

  test.each<[object, RegExp]>([
    [{}, /'degrees' is 'auto', but an engine of kind 'embedded' generates on one device a rank, .* leave it out/],
    [
      { engine: { kind: "sglang", url: "http://127.0.0.1:1", model: "m" } },
      /a server of kind 'sglang' has as many devices as it was started with; list those of each rank/,
    ],
    [{ emulated: {} }, /'emulated.tokenTime' does not say what a token takes on so many devices; give it, or list/],
    [{ emulated: { tokenTime: { 1: 0.1 } } }, /'placement' is 'own': .* set it to 'predicted', or list the devices/],
    [{ emulated: { tokenTime: { 1: 0.1 } }, placement: "least-load" }, /'placement' is 'least-load'/],
  ])("degrees that are to be decided, with %j", (changes, message) => {
    expect(() => checkDegrees({ ...RolloutConfig.parse({ ...sound, degrees: "auto" }), ...changes } as never)).toThrow(
      message,
    );
  });

  test("but ranks of an emulated engine are sized between steps, and begin as small as it knows them", () => {
    const auto = { degrees: "auto", placement: "predicted", emulated: { tokenTime: { 2: 0.02, 4: 0.01 }, slots: 4 } };
    expect(check(RolloutWorker, auto)).not.toThrow();
    const sizer = RolloutWorker.degrees(RolloutConfig.parse({ ...sound, ...auto }));
    expect(sizer).toMatchObject({ devicesPerRank: 2 });
    expect(() => RolloutConfig.parse({ ...sound, degrees: "best" })).toThrow(/"auto"/);
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
