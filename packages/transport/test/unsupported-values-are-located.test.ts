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

test("an instance that would arrive without its methods is refused, and one of fields alone travels as these", () => {
  class Amount {
    readonly cents: number;
    constructor(cents: number) {
      this.cents = cents;
    }
  }
  class Money extends Amount {
    get euros(): number {
      return this.cents / 100;
    }
  }
  class Coin extends Money {}
  expect(refused({ value: [{ price: new Coin(5) }] })).toBe(
    "a message holds an instance of 'Coin' with its method 'euros' in 'value.0.price', which cannot leave its process; send its fields as a plain object, as { ...it } has them, and make the instance where it arrives",
  );
  expect(refused({ value: new Map([["price", new Money(5)]]) })).toContain("in 'value.price'");
  expect(refused({ value: new Amount(5) })).toBe("");
});
