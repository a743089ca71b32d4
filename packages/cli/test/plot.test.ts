import fc from "fast-check";
import { expect, it } from "vitest";
import { apportion, bar, dotPlot, sparkline } from "../src/view/plot.ts";
import { formatClock, formatCount, formatSeconds, significant } from "../src/view/text.ts";

const points = (...values: number[]) => values.map((value, step) => ({ step, value }));

it("draws a rising curve rising", () => {
  expect(sparkline(points(0, 1, 2, 3, 4, 5, 6, 7), 8)).toBe("▁▂▃▄▅▆▇█");
  expect(sparkline(points(3, 3), 8)).toBe("▄▄");
  expect(sparkline([], 8)).toBe("");
  expect(sparkline(points(0, 1, 2, 2), 8, { low: 0, high: 2 })).toBe("▁▅██");
  expect(sparkline(points(0, 0), 8, { low: 0, high: 2 })).toBe("▁▁");
  const { lines, low, high } = dotPlot(points(0, 10), 3, 2);
  expect([low, high]).toEqual([0, 10]);
  expect(lines).toEqual(["⠀⢀⠔", "⡠⠊⠀"].map((line) => expect.stringMatching(new RegExp(`^.{${line.length}}$`))));
  expect(lines[0]!.codePointAt(0)).toBe(0x2800);
  expect(lines[1]!.codePointAt(2)).toBe(0x2800);
  expect(lines[0]!.codePointAt(2)).not.toBe(0x2800);
});

it("keeps bars and shares at their width", () => {
  const share = fc.double({ min: -0.5, max: 1.5, noNaN: true });
  fc.assert(
    fc.property(share, fc.nat(60), (value, columns) => {
      const { filled, rest } = bar(value, columns);
      expect(filled.length + rest).toBe(columns);
      expect(rest).toBeGreaterThanOrEqual(0);
    }),
  );
  fc.assert(
    fc.property(
      fc.array(fc.nat(100), { minLength: 1, maxLength: 6 }),
      fc.integer({ min: 1, max: 80 }),
      (weights, columns) => {
        const total = weights.reduce((sum, weight) => sum + weight, 0);
        fc.pre(total > 0);
        const cells = apportion(
          weights.map((weight) => weight / total),
          columns,
        );
        expect(cells.reduce((sum, value) => sum + value, 0)).toBe(columns);
        weights.forEach((weight, i) => {
          expect(Math.abs(cells[i]! - (weight / total) * columns)).toBeLessThan(1 + 1e-9);
        });
      },
    ),
  );
});

it("writes numbers as people read them", () => {
  expect([0.042, 7.25, 42.04, 59.97, 102, 7500].map(formatSeconds)).toEqual([
    "42 ms",
    "7.25 s",
    "42.0 s",
    "1m 00s",
    "1m 42s",
    "2h 05m",
  ]);
  expect([4, 64, 3600].map(formatClock)).toEqual(["4s", "1m 04s", "1h 00m"]);
  expect([7, 999.7, 12_345, 999_900, 1_050_000].map(formatCount)).toEqual([
    "7",
    "1.00 k",
    "12.3 k",
    "1.00 M",
    "1.05 M",
  ]);
  expect([0, 0.00042, 0.042, 0.5, 12.34, 1234, Number.NaN].map(significant)).toEqual([
    "0",
    "4.2e-4",
    "0.042",
    "0.50",
    "12.3",
    "1234",
    "NaN",
  ]);
});
