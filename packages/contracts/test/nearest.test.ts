import { expect, test } from "vitest";
import { nearestOf } from "../src/index.ts";

test("the nearest known name is found, and a far one is not offered", () => {
  expect(nearestOf("stesp", ["steps", "seed"])).toBe("steps");
  expect(nearestOf("velocity", ["steps", "seed"])).toBeUndefined();
  expect(nearestOf("x", [])).toBeUndefined();
});
