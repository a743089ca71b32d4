import fc from "fast-check";
import { expect, test } from "vitest";
import { dealByWeight } from "../../src/channel/deal-by-weight.ts";

/** The heaviest part of the best of all divisions, by trying each. */
function bestHeaviest(
  weights: readonly number[],
  numParts: number,
  loads = new Array<number>(numParts).fill(0),
): number {
  const [weight, ...rest] = weights;
  if (weight === undefined) return Math.max(...loads);
  const tried = loads.map((load, part) => bestHeaviest(rest, numParts, loads.with(part, load + weight)));
  return Math.min(...tried);
}

test("each thing is dealt once, into as many parts as asked for, the heaviest within Graham's bound of the best division", () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 30 }), { maxLength: 7 }),
      fc.integer({ min: 1, max: 4 }),
      (weights, numParts) => {
        const parts = dealByWeight(weights, numParts);
        expect(parts).toHaveLength(numParts);
        expect(parts.flat().toSorted((a, b) => a - b)).toEqual([...weights.keys()]);
        for (const part of parts) expect(part).toEqual(part.toSorted((a, b) => a - b));
        const heaviest = Math.max(...parts.map((part) => part.reduce((sum, at) => sum + (weights[at] as number), 0)));
        const bound = (4 / 3 - 1 / (3 * numParts)) * bestHeaviest(weights, numParts);
        expect(heaviest).toBeLessThanOrEqual(bound + 1e-9);
      },
    ),
    { numRuns: 300 },
  );
});

test("of equal things, parts get numbers that differ by one at most", () => {
  const counts = dealByWeight(new Array<number>(7).fill(0), 3).map(({ length }) => length);
  expect(counts).toEqual([3, 2, 2]);
});
