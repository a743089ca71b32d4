import { expect, test } from "vitest";
import { comparePairs, meanAndError } from "./paired-comparison.ts";

test("mean and standard error by hand", () => {
  // 1 2 3 6: mean 3, squares 4 + 1 + 0 + 9 = 14, variance 14 / 3, standard error sqrt(14 / 12)
  expect(meanAndError([1, 2, 3, 6])).toEqual({ mean: 3, standardError: Math.sqrt(14 / 12) });
});

test("a shift that every pair shows is a difference, one that goes both ways is none", () => {
  const shifted = comparePairs([5.1, 6.2, 7, 8.1, 9.2, 10], [4, 5, 6, 7, 8, 9]);
  // differences 1.1 1.2 1 1.1 1.2 1: mean 1.1, squares 0.04, standard error sqrt(0.04 / 30), t(5) = 2.571
  expect(shifted.difference).toBeCloseTo(1.1, 9);
  expect(shifted.high - shifted.difference).toBeCloseTo(2.571 * Math.sqrt(0.04 / 30), 9);
  expect(shifted.low).toBeGreaterThan(0);
  expect(shifted.pValue).toBeCloseTo(2 / 64, 9); // as it is, and all signs turned
  const mixed = comparePairs([1, 2, 3, 4], [2, 1, 4, 3]);
  expect(mixed).toMatchObject({ difference: 0, pValue: 1 });
  expect(mixed.low).toBeLessThan(0);
  expect(mixed.high).toBeGreaterThan(0);
});
