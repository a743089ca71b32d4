import { expect } from "vitest";

/** Sums of as many terms in another order differ by so much of their size. */
export function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, share = 1e-4): void {
  expect(actual.length).toBe(expected.length);
  const size = Math.max(1e-3, ...Array.from(expected, Math.abs));
  for (let at = 0; at < actual.length; at++)
    expect(Math.abs(actual[at]! - expected[at]!)).toBeLessThanOrEqual(share * size);
}
