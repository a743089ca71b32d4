import fc from "fast-check";
import { expect, test } from "vitest";
import { type Line, robustLine } from "../../src/profile/robust-line.ts";

type Points = readonly { readonly x: number; readonly y: number }[];
const offBy = (points: Points, { base, slope }: Line): number =>
  points.reduce((sum, { x, y }) => sum + Math.abs(y - base - slope * x), 0);

const points = fc.array(
  fc.record({ x: fc.integer({ min: 1, max: 30 }), y: fc.double({ min: -0.1, max: 0.5, noNaN: true }) }),
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
    }),
  );
});

test("points on a line give that line, whatever a few others say", () => {
  const onLine = [4, 9, 14, 20, 25].map((x) => ({ x, y: 0.02 + 0.003 * x }));
  for (const far of [0.4, -0.2]) {
    const { base, slope } = robustLine([...onLine, { x: 24, y: far }, { x: 6, y: far }]);
    expect(base).toBeCloseTo(0.02, 9);
    expect(slope).toBeCloseTo(0.003, 9);
  }
  expect(robustLine([])).toEqual({ base: 0, slope: 0 });
  expect(robustLine([{ x: 4, y: -1 }])).toEqual({ base: 0, slope: 0 });
});
