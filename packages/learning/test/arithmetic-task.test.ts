import { readFile } from "node:fs/promises";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parse as parseYaml } from "yaml";
import { createArithmeticTask, createCharacterTokenizer, demonstrationOf, measureAccuracy } from "../src/index.ts";

const task = createArithmeticTask();
const textOf = (prompt: { tokens: Int32Array }) => task.tokenizer.decode(prompt.tokens);
const parse = (text: string) => {
  const [, left, operator, right] = /^(\d+)([-+*])(\d+)=$/.exec(text)!;
  return { left: Number(left), operator: operator as "+" | "-" | "*", right: Number(right) };
};

const identityOf = (text: string) => {
  const { left, operator, right } = parse(text);
  return `${Math.min(left, right)}${operator}${Math.max(left, right)}`;
};

describe("problems", () => {
  test("are two-digit additions by default, with their sums", () => {
    for (const prompt of task.problemsAt(0, 200)) {
      const { left, operator, right } = parse(textOf(prompt));
      expect(operator).toBe("+");
      expect(Math.min(left, right)).toBeGreaterThanOrEqual(10);
      expect(Math.max(left, right)).toBeLessThanOrEqual(99);
      expect(prompt.answer).toBe(String(left + right));
      expect(prompt.tokens.length).toBeLessThanOrEqual(task.maxPromptTokens);
      expect(prompt.answer!.length + 1).toBeLessThanOrEqual(task.maxAnswerTokens);
    }
    expect(task).toMatchObject({ maxPromptTokens: 6, maxAnswerTokens: 4 });
  });

  test("follow operators, operands and the order of digits", () => {
    const mixed = createArithmeticTask({ operators: ["-", "*"], minOperand: 3, maxOperand: 40, reverseAnswer: true });
    const prompts = mixed.problemsAt(0, 200);
    const seen = new Set<string>();
    for (const prompt of prompts) {
      const { left, operator, right } = parse(mixed.tokenizer.decode(prompt.tokens));
      const result = operator === "-" ? left - right : left * right;
      expect([...prompt.answer!].reverse().join("")).toBe(String(result));
      expect(prompt.answer!.length + 1).toBeLessThanOrEqual(mixed.maxAnswerTokens);
      seen.add(operator);
    }
    expect([...seen].sort()).toEqual(["*", "-"]);
    expect(mixed.maxAnswerTokens).toBe(5); // 1600 and the stop token
  });

  test("of a step depend on seed and step alone, and fewer are a prefix of more", () => {
    fc.assert(
      fc.property(fc.nat(), fc.nat(1000), fc.nat(20), fc.nat(20), (seed, step, a, b) => {
        const fresh = createArithmeticTask({ seed });
        const used = createArithmeticTask({ seed });
        used.problemsAt(step + 1, 5);
        used.heldOut(3);
        expect(used.problemsAt(step, Math.max(a, b)).slice(0, a)).toEqual(
          fresh.problemsAt(step, a).slice(0, Math.max(a, b)),
        );
      }),
      { numRuns: 30 },
    );
  });

  test("have ids of their own, and differ between steps and seeds", () => {
    const ids = [0, 1, 2, 10, 11].flatMap((step) => task.problemsAt(step, 50).map(({ id }) => id));
    expect(new Set(ids).size).toBe(250);
    const texts = (step: number, seed: number) => createArithmeticTask({ seed }).problemsAt(step, 20).map(textOf);
    expect(texts(0, 0)).not.toEqual(texts(1, 0));
    expect(texts(0, 0)).not.toEqual(texts(0, 1));
  });

  test("cover the whole training split", () => {
    const small = createArithmeticTask({ minOperand: 0, maxOperand: 9 });
    const seen = new Set(small.problemsAt(0, 2000).map(textOf));
    let training = 0;
    for (let left = 0; left <= 9; left++) {
      for (let right = 0; right <= 9; right++)
        if (small.splitOf({ left, operator: "+", right }) === "training") training += 1;
    }
    expect(seen.size).toBe(training);
  });
});

describe("the split", () => {
  test("keeps training and held-out problems apart for every seed", () => {
    const heldOut = new Set(task.heldOut(300).map(textOf));
    expect(heldOut.size).toBe(300);
    fc.assert(
      fc.property(fc.nat(), fc.nat(), (seed, step) => {
        for (const prompt of createArithmeticTask({ seed }).problemsAt(step, 30)) {
          expect(heldOut.has(textOf(prompt))).toBe(false);
          expect(task.splitOf(parse(textOf(prompt)))).toBe("training");
        }
      }),
      { numRuns: 50 },
    );
  });

  test("is the same for every seed and puts mirrored sums together", () => {
    expect(createArithmeticTask({ seed: 7 }).heldOut(50)).toEqual(task.heldOut(50));
    fc.assert(
      fc.property(fc.integer({ min: 10, max: 99 }), fc.integer({ min: 10, max: 99 }), (left, right) => {
        const mirrored = task.splitOf({ left: right, operator: "+", right: left });
        expect(task.splitOf({ left, operator: "+", right })).toBe(mirrored);
      }),
    );
  });

  test("holds out about the fraction asked for", () => {
    let heldOut = 0;
    for (let left = 10; left < 100; left++) {
      for (let right = 10; right < 100; right++)
        if (task.splitOf({ left, operator: "+", right }) === "held-out") heldOut += 1;
    }
    // 4095 independent unordered pairs at 0.1: a standard deviation of about 0.0065 in this weighting
    expect(heldOut / 8100).toBeGreaterThan(0.07);
    expect(heldOut / 8100).toBeLessThan(0.13);
  });

  test("counts a sum and its mirror once, in each of the three sets, which never meet", () => {
    const sets = [task.heldOut(300), task.validation(150), task.demonstrated(170)].map(
      (prompts) => new Set(prompts.map((prompt) => identityOf(textOf(prompt)))),
    );
    expect(sets.map(({ size }) => size)).toEqual([300, 150, 170]);
    expect(new Set(sets.flatMap((set) => [...set])).size).toBe(620);
    expect(createArithmeticTask({ seed: 7 }).validation(50)).toEqual(task.validation(50));
  });

  test("demonstrates what it is asked for, both ways round, and of every seed other problems", () => {
    const demonstrated = task.demonstrated(40);
    expect(new Set(demonstrated.map(textOf)).size).toBe(demonstrated.length);
    expect(demonstrated.length).toBeGreaterThan(70);
    expect(demonstrated.every((prompt) => task.splitOf(parse(textOf(prompt))) === "training")).toBe(true);
    expect(createArithmeticTask({ seed: 7 }).demonstrated(40)).not.toEqual(demonstrated);
  });

  test.each(["reasoning-grpo", "tool-agent"])(
    "of %s leaves at most one trainable problem in twenty demonstrated",
    async (workflow) => {
      const file = new URL(`../../../workflows/${workflow}/config.yaml`, import.meta.url);
      const config = parseYaml(await readFile(file, "utf8"));
      const task = createArithmeticTask(config.task);
      const { operators, minOperand, maxOperand } = config.task;
      const operator = operators?.[0] ?? "+";
      const trainable = new Set<string>();
      for (let left = minOperand; left <= maxOperand; left++) {
        for (let right = left; right <= maxOperand; right++) {
          if (task.splitOf({ left, operator, right }) === "training") trainable.add(`${left}${operator}${right}`);
        }
      }
      const shown = new Set(task.demonstrated(config.imitation.problems).map((prompt) => identityOf(textOf(prompt))));
      expect([...shown].filter((identity) => !trainable.has(identity))).toEqual([]);
      expect(shown.size / trainable.size).toBeLessThanOrEqual(0.05);
      expect(task.heldOut(config.evaluation.problems)).toHaveLength(config.evaluation.problems);
      expect(task.validation(config.evaluation.validationProblems)).toHaveLength(config.evaluation.validationProblems);
    },
  );

  test("says when it has too few problems", () => {
    expect(() => createArithmeticTask({ heldOutFraction: 0 }).heldOut(1)).toThrow(
      /no held-out problem number '1' of '1'/,
    );
    expect(() => createArithmeticTask({ minOperand: 0, maxOperand: 1 }).heldOut(5)).toThrow(
      /widen the operands' range/,
    );
  });
});

test("a demonstration is prompt, answer and stop, learned from the answer on", () => {
  const [prompt] = task.problemsAt(3, 1);
  const { tokens, mask } = demonstrationOf(prompt!, task.tokenizer);
  expect(task.tokenizer.decode(tokens)).toBe(`${textOf(prompt!)}${prompt!.answer}`);
  expect(tokens.at(-1)).toBe(task.tokenizer.stopToken);
  const learned = [...tokens].filter((_, token) => mask[token] === 1);
  expect(task.tokenizer.decode(learned)).toBe(prompt!.answer);
  expect(learned).toHaveLength(prompt!.answer!.length + 1);
});

describe("accuracy", () => {
  const prompts = ["46", "7", "100", "5"].map((answer) => ({ id: answer, tokens: Int32Array.of(2), answer }));
  const tokens = (text: string, ...after: number[]) => ({ tokens: [...task.tokenizer.encode(text), ...after] });

  test("counts exact answers up to the stop token", () => {
    // right; right, with tokens after the stop; a digit short; right without a stop
    const completions = [tokens("46", 1), tokens("7", 1, 5, 5), tokens("10", 1), tokens("5")];
    expect(measureAccuracy(prompts, completions, task.tokenizer)).toEqual({ correct: 3, total: 4, accuracy: 0.75 });
    expect(measureAccuracy([], [], task.tokenizer).accuracy).toBe(0);
  });

  test("wants one completion a prompt", () => {
    expect(() => measureAccuracy(prompts, [], task.tokenizer)).toThrow(/'0' completions to '4' prompts/);
  });
});

describe("the tokenizer", () => {
  const tokenizer = createCharacterTokenizer("0123456789+-*=");

  test("decodes what it encodes", () => {
    fc.assert(
      fc.property(fc.stringMatching(/^[0-9+*=-]*$/), (text) => {
        expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
      }),
    );
    expect(tokenizer.vocabularySize).toBe(16);
    expect(tokenizer.decode([0, 2, 3, 1, 4])).toBe("01");
  });

  test("names what it does not know", () => {
    expect(() => tokenizer.encode("1/2")).toThrow(/character '\/' of '1\/2' has no token/);
    expect(() => tokenizer.decode([16])).toThrow(/token '16' at '0'.*0 to 15/);
  });
});
