import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { arithmeticAlphabet, createChainTask, createCharacterTokenizer, firstDone } from "../src/index.ts";

const tokenizer = createCharacterTokenizer(arithmeticAlphabet);
const seed = Number(process.env.TREADLE_SEED);
const chains = (given: object = {}) => createChainTask({ kind: "chains", seed, ...given });
const textOf = ({ tokens }: { tokens: Int32Array }) => tokenizer.decode(tokens).replace(/=+$/, "");
const operationsOf = (text: string) => text.match(/[-+*]/g)?.length ?? 0;

/** As the chain reads, from left to right. */
function valuesOf(text: string): number[] {
  const parts = text.split(/([-+*])/);
  const values = [Number(parts[0])];
  for (let at = 1; at < parts.length; at += 2) {
    const [left, right] = [values.at(-1)!, Number(parts[at + 1])];
    values.push(parts[at] === "+" ? left + right : parts[at] === "-" ? left - right : left * right);
  }
  return values;
}

describe("chains", () => {
  test("stay within operands, results and lengths, and end with their answer", () => {
    const drawn = fc.record({
      maxOperand: fc.integer({ min: 2, max: 20 }),
      maxResult: fc.integer({ min: 20, max: 200 }),
      maxOperations: fc.integer({ min: 1, max: 9 }),
      operators: fc.subarray(["+", "-", "*"], { minLength: 1 }),
    });
    fc.assert(
      fc.property(drawn, (given) => {
        const widest = (given.maxOperations + 1) * (`${given.maxOperand}`.length + 1);
        for (const prompt of chains(given).problemsAt(1, 12)) {
          expect(prompt.tokens).toHaveLength(widest);
          const text = textOf(prompt);
          const values = valuesOf(text);
          expect(Math.min(...values)).toBeGreaterThanOrEqual(0);
          expect(Math.max(...values)).toBeLessThanOrEqual(given.maxResult);
          expect(operationsOf(text)).toBeLessThanOrEqual(given.maxOperations);
          expect(prompt.answer).toBe(`${values.at(-1)}`);
          for (const operator of text.match(/[-+*]/g) ?? []) expect(given.operators).toContain(operator);
          for (const operand of text.split(/[-+*]/)) expect(Number(operand)).toBeLessThanOrEqual(given.maxOperand);
        }
      }),
      { numRuns: 30 },
    );
  });

  test("are short for the most part, and long often enough to decide how long a step takes", () => {
    const lengths = chains({ maxOperations: 8 })
      .problemsAt(0, 2000)
      .map((prompt) => operationsOf(textOf(prompt)))
      .sort((a, b) => a - b);
    expect(lengths[0]).toBe(1);
    expect(lengths[1000]).toBeLessThanOrEqual(2);
    const share = lengths.filter((length) => length === 8).length / lengths.length;
    expect(share).toBeGreaterThan(0.02);
    expect(share).toBeLessThan(0.25);
  });

  test("of a step depend on seed and step alone, and no chain is in two splits", () => {
    const [one, other] = [chains(), chains()];
    other.problemsAt(3, 7);
    expect(other.problemsAt(5, 4)).toEqual(one.problemsAt(5, 9).slice(0, 4));
    const texts = (prompts: readonly { tokens: Int32Array }[]) => new Set(prompts.map(textOf));
    const sets = [texts(one.problemsAt(1, 400)), texts(one.validation(60)), texts(one.heldOut(60))];
    for (const [at, set] of sets.entries())
      for (const later of sets.slice(at + 1)) for (const text of set) expect(later.has(text)).toBe(false);
    expect(sets[1]!.size).toBe(60);
    for (const text of texts(one.demonstrated(60))) expect(sets[1]!.has(text) || sets[2]!.has(text)).toBe(false);
  });

  test("that begin with the same sum or product are one, in whatever order: each is in one split, once", () => {
    const written = (text: string) => {
      const begin = /^\d+(\+\d+)*(?![\d*])|^\d+(\*\d+)+/.exec(text)![0];
      const operator = begin.includes("*") ? "*" : "+";
      return [
        begin
          .split(operator)
          .map(Number)
          .sort((a, b) => a - b)
          .join(operator),
        text.slice(begin.length),
      ].join("");
    };
    const one = chains({ operators: ["+", "*", "-"], maxOperations: 3 });
    const sets = [one.problemsAt(1, 600), one.validation(80), one.heldOut(120)].map((prompts) =>
      prompts.map(textOf).map(written),
    );
    for (const [at, set] of sets.entries())
      for (const later of sets.slice(at + 1)) for (const text of set) expect(later).not.toContain(text);
    for (const different of sets.slice(1)) expect(new Set(different).size).toBe(different.length);
  });

  test.each([
    [{ maxOperand: 0 }, /maxOperand/],
    [{ maxResult: 5, maxOperand: 9 }, /maxOperand/],
    [{ heldOutFraction: 0.6, validationFraction: 0.5 }, /validationFraction/],
    [{ lenght: 3 }, /lenght/],
  ])("of %j are refused", (given, message) => {
    expect(() => chains(given)).toThrow(message);
  });

  test("that do not suffice are asked for in vain, with what would help", () => {
    const few = chains({ maxOperand: 2, maxOperations: 1, operators: ["+"] });
    expect(() => few.heldOut(50)).toThrow(/no more held-out chains found.*widen the operands' range/);
  });
});

test("the first operation of a chain is done as the tool of long-tailed.yaml does it", () => {
  const path = new URL("../../../workflows/tool-agent/long-tailed.yaml", import.meta.url);
  const { tool, chains: configured } = parse(readFileSync(path, "utf8")) as {
    tool: { program: string };
    chains: object;
  };
  const prompts = createChainTask(configured).problemsAt(2, 12);
  for (const prompt of prompts) {
    const width = prompt.tokens.length;
    for (let text = tokenizer.decode(prompt.tokens); operationsOf(text) > 0; ) {
      const output = execFileSync("sh", ["-c", tool.program, "sh", text], { encoding: "utf8" }).trim();
      expect(output).toBe(firstDone(text)!.padEnd(width, "="));
      text = output;
    }
  }
  expect(firstDone("13")).toBeUndefined();
  expect(firstDone("a+1")).toBeUndefined();
});
