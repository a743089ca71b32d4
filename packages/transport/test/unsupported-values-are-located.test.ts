import { expect, test } from "vitest";
import { Encoder } from "../src/codec/codec.ts";

const refused = (message: unknown): string => {
  try {
    new Encoder().encode(message);
    return "";
  } catch (error) {
    return (error as Error).message;
  }
};

test("a value that cannot leave its process is named with where it stands", () => {
  expect(refused({ value: { scores: [1, { judge: () => 1 }] } })).toBe(
    "a message holds a function in 'value.scores.1.judge', which cannot leave its process; send data only",
  );
  expect(refused({ value: new Map([["cause", new Error("x")]]) })).toContain("holds an Error in 'value.cause'");
  expect(refused(() => 1)).toBe("a message holds a function, which cannot leave its process; send data only");
});

test("a cycle is refused, and its search for a place ends", () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  expect(refused({ cycle })).toContain("nested deeper than");
});
