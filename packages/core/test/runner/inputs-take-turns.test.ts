import { expect, test } from "vitest";
import { inTurn } from "../../src/runner/in-turn.ts";

test("RL1: what arrives while an input is handled comes after it, in order of arrival", () => {
  const log: string[] = [];
  const feed = inTurn((input: string) => {
    log.push(`${input} begins`);
    if (input === "a") {
      feed("b");
      feed("c");
    }
    if (input === "b") feed("d");
    log.push(`${input} ends`);
  });
  feed("a");
  expect(log).toEqual(["a", "b", "c", "d"].flatMap((input) => [`${input} begins`, `${input} ends`]));
});

test("RL1: an input that is refused is thrown to whoever fed it, and what waits is handled with the next", () => {
  const handled: string[] = [];
  const feed = inTurn((input: string) => {
    if (input === "refused") {
      feed("waits");
      throw new Error("no");
    }
    handled.push(input);
  });
  expect(() => feed("refused")).toThrow("no");
  expect(handled).toEqual([]);
  feed("next");
  expect(handled).toEqual(["waits", "next"]);
});
