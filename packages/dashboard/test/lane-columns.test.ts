import fc from "fast-check";
import { expect, it } from "vitest";
import { LaneColumns } from "../src/view/lane-columns.ts";

const parts = 28;
const covers = fc.array(
  fc.record({
    paint: fc.integer({ min: 0, max: 4 }),
    from: fc.double({ min: -5, max: 45, noNaN: true }),
    length: fc.double({ min: 0, max: 30, noNaN: true }),
    busy: fc.double({ min: 0, max: 1, noNaN: true }),
  }),
  { maxLength: 40 },
);

it("each column is as high as what covers it, at most as the lane, and blocks that touch differ", () => {
  const columns = new LaneColumns();
  fc.assert(
    fc.property(covers, fc.integer({ min: 1, max: 40 }), (all, numColumns) => {
      columns.begin(numColumns);
      const wanted = new Float64Array(numColumns);
      for (const { paint, from, length, busy } of all) {
        columns.cover(paint, from, from + length, busy * length);
        const first = Math.max(0, Math.min(numColumns - 1, Math.floor(from)));
        const last = Math.max(first, Math.min(numColumns - 1, Math.floor(from + length)));
        for (let at = first; at <= last; at++)
          wanted[at] = (wanted[at] as number) + (busy * length) / (last - first + 1);
      }
      const blocks = [...columns.blocks(parts)];
      for (let at = 0; at < numColumns; at++) {
        const here = blocks.filter(({ column, width }) => at >= column && at < column + width);
        here.sort((a, b) => a.low - b.low);
        for (const [index, { low, high }] of here.entries()) {
          expect(low).toBe(here[index - 1]?.high ?? 0); // on top of each other, without a gap
          expect(high).toBeGreaterThan(low);
        }
        const height = here.at(-1)?.high ?? 0;
        expect(Math.abs(height - Math.min(1, wanted[at] as number) * parts)).toBeLessThanOrEqual(0.5 + 1e-6);
      }
      for (const a of blocks) {
        const next = blocks.find(({ paint, column }) => paint === a.paint && column === a.column + a.width);
        if (next) expect([next.low, next.high]).not.toEqual([a.low, a.high]);
      }
    }),
  );
});
