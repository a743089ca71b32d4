/** Rewards that a configuration chooses: the same text, the same number, what a regular expression finds. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { builtInRewards, scoreCompletion } from "../src/index.ts";

function judge(config: { name: string; [key: string]: unknown }, answer: string, ...texts: string[]) {
  const reward = builtInRewards.create(config);
  const prompt = { id: "p", tokens: Int32Array.of(), answer };
  return Promise.all(texts.map((text) => reward.score(prompt, { tokens: Int32Array.of(), text })));
}

describe("exact", () => {
  test("compares after normalisation, which is as wide as configured", async () => {
    expect(await judge({ name: "exact" }, "New York", "New York", " New \n York\t", "new york", "New York.")).toEqual([
      1, 1, 0, 0,
    ]);
    expect(await judge({ name: "exact", ignoreSpacing: false }, "a  b", " a  b ", "a b")).toEqual([1, 0]);
    const lax = { name: "exact", ignoreCase: true, ignorePunctuation: true };
    expect(await judge(lax, "New York", "«new, york!»", "newyork")).toEqual([1, 0]);
  });

  test("knows that one character may be written in two ways", async () => {
    expect(await judge({ name: "exact" }, "caf\u00e9 ½", "cafe\u0301 1⁄2")).toEqual([1]);
  });
});

describe("numeric", () => {
  test("compares the last number", async () => {
    const texts = [
      "it is 18",
      "18.0, of 20 18",
      "\\boxed{18}",
      "#### 18",
      "18 - 1",
      "no number",
      "1.8e1",
      "−18",
      "018",
    ];
    expect(await judge({ name: "numeric" }, "#### 18", ...texts)).toEqual([1, 1, 1, 1, 0, 0, 1, 0, 1]);
    expect(await judge({ name: "numeric" }, "1,234.50", "$1234.5", "1.234,5", "+1,234.5")).toEqual([1, 0, 1]);
    expect(await judge({ name: "numeric" }, "3", "8-5=3", "x=-3", "5-3", "(-3)")).toEqual([1, 0, 1, 0]);
  });

  test("compares a million digits, most of them zeros, before anybody loses patience", async () => {
    const long = `1${"0".repeat(1_000_000)}1`;
    expect(await judge({ name: "numeric" }, long, long, `${long}0`)).toEqual([1, 0]);
  });

  test("tells numbers apart that doubles cannot, unless there is a tolerance", async () => {
    const [big, next] = ["9007199254740993", "9007199254740992"];
    expect(await judge({ name: "numeric" }, big, big, next)).toEqual([1, 0]);
    expect(await judge({ name: "numeric", relativeTolerance: 1e-9 }, big, next)).toEqual([1]);
    expect(await judge({ name: "numeric", tolerance: 0.01 }, "3.14", "3.1415", "3.16")).toEqual([1, 0]);
  });

  test("reads a number however it is written", async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer(), fc.nat({ max: 6 }), async (units, places) => {
        const [sign, digits] = [units < 0 ? "-" : "", `${Math.abs(units)}`.padStart(places + 1, "0")];
        const [whole, fraction] = [digits.slice(0, digits.length - places), digits.slice(digits.length - places)];
        const plain = `${sign}${whole}.${fraction}0`;
        const grouped = `${sign}${whole.replace(/\B(?=(\d{3})+$)/g, ",")}.${fraction}0`;
        expect(await judge({ name: "numeric" }, `${units}e-${places}`, `= ${plain}`, `= ${grouped}`)).toEqual([1, 1]);
      }),
    );
  });

  test("names a prompt whose answer is no number", async () => {
    const reward = builtInRewards.create({ name: "numeric" });
    const prompt = { id: "p", tokens: Int32Array.of(), answer: "none" };
    const scored = scoreCompletion(reward, prompt, { tokens: Int32Array.of(), text: "1" });
    await expect(scored).rejects.toThrow("answer 'none' of prompt 'p' has no number");
  });
});

describe("regex", () => {
  test("compares what a group finds, in the last match or in the first", async () => {
    const pattern = "<answer>(.*?)</answer>";
    const texts = ["<answer> B </answer>", "<answer>A</answer> <answer>B</answer>", "B", "<answer>B"];
    expect(await judge({ name: "regex", pattern }, "B", ...texts)).toEqual([1, 1, 0, 0]);
    expect(await judge({ name: "regex", pattern, match: "first" }, "B", texts[1] as string)).toEqual([0]);
    const named = {
      name: "regex",
      pattern: "(?i)(the )?answer is (?P<n>[-0-9.,]+)",
      group: "n",
      compare: { name: "numeric" },
    };
    expect(await judge(named, "1200", "The answer is 1,200.", "the ANSWER is 12")).toEqual([1, 0]);
  });

  test("without a comparison judges the form alone", async () => {
    expect(await judge({ name: "regex", pattern: "^<think>", compare: null }, "", "<think>", "a<think>")).toEqual([
      1, 0,
    ]);
  });

  test("takes linear time where backtracking takes exponential", async () => {
    const nested = { name: "regex", pattern: "^(a+)+$", compare: null };
    expect(await judge(nested, "", `${"a".repeat(5000)}b`)).toEqual([0]);
  });

  test("refuses a pattern or a group that it does not have", () => {
    const make = (config: object) => () => builtInRewards.create({ name: "regex", ...config }, "reward");
    expect(make({ pattern: "(a" })).toThrow("reward.pattern is '(a': allowed is a regular expression of RE2");
    expect(make({ pattern: "(?=a)" })).toThrow("lookaround");
    expect(make({ pattern: "(a)(?P<n>b)", group: 3 })).toThrow("reward.group is '3': allowed is 0 to 2, 'n'");
    expect(make({ pattern: "a", group: "n" })).toThrow("reward.group is 'n': allowed is 0 to 0");
    expect(make({ pattern: "a", compare: { name: "exact", ignoreCase: 1 } })).toThrow(
      "reward.compare.ignoreCase is '1'",
    );
  });
});
