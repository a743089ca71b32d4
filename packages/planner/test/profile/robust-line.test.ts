import fc from "fast-check";
import { expect, test } from "vitest";
import { type Line, type Point, robustLine } from "../../src/profile/robust-line.ts";

const offBy = (points: readonly Point[], { base, slope }: Line): number =>
  points.reduce((sum, { x, y, weight }) => sum + weight * Math.abs(y - base - slope * x), 0);

const points = fc.array(
  fc.record({
    x: fc.integer({ min: 1, max: 30 }),
    y: fc.double({ min: -0.1, max: 0.5, noNaN: true }),
    weight: fc.constantFrom(1, 1, 2, 3),
  }),
  { maxLength: 8 },
);

test("no line that begins at 0 or above and does not fall is nearer to the points", () => {
  const amount = fc.double({ min: 0, max: 0.3, noNaN: true });
  fc.assert(
    fc.property(points, amount, amount, (drawn, base, slope) => {
      const found = robustLine(drawn);
      expect(found.base).toBeGreaterThanOrEqual(0);
      expect(found.slope).toBeGreaterThanOrEqual(0);
      expect(offBy(drawn, found)).toBeLessThanOrEqual(offBy(drawn, { base, slope: slope / 10 }) + 1e-9);
      const reversed = robustLine(drawn.toReversed());
      expect(reversed.base).toBeCloseTo(found.base, 9);
      expect(reversed.slope).toBeCloseTo(found.slope, 9);
    }),
  );
});

test("of two layouts with as many ranks the middle counts, whichever was measured first", () => {
  const [low, high] = [0.01, 0.03].map((y) => ({ x: 4, y, weight: 1 })) as [Point, Point];
  for (const both of [
    [low, high],
    [high, low],
  ]) {
    const { base, slope } = robustLine(both);
    expect(base + 4 * slope).toBeCloseTo(0.02, 9);
  }
});

test("points on a line give that line, whatever a few others say", () => {
  const onLine = [4, 9, 14, 20, 25].map((x) => ({ x, y: 0.02 + 0.003 * x, weight: 1 }));
  for (const far of [0.4, -0.2]) {
    const { base, slope } = robustLine([...onLine, { x: 24, y: far, weight: 1 }, { x: 6, y: far, weight: 1 }]);
    expect(base).toBeCloseTo(0.02, 9);
    expect(slope).toBeCloseTo(0.003, 9);
  }
  expect(robustLine([])).toEqual({ base: 0, slope: 0 });
  expect(robustLine([{ x: 4, y: -1, weight: 1 }])).toEqual({ base: 0, slope: 0 });
});
