import fc from "fast-check";
import { expect, it } from "vitest";
import { differences, overlay } from "../src/view/comparison.ts";
import { LaneSet } from "../src/view/lanes.ts";
import { SpanTable } from "../src/view/span-table.ts";
import { tickStepMs, tickText } from "../src/view/ticks.ts";
import { appendSpan } from "./support/append-span.ts";

const spans = fc.array(
  fc.record({
    startMs: fc.double({ min: 0, max: 10_000, noNaN: true }),
    durationMs: fc.oneof(
      fc.constant(0),
      fc.double({ min: 0, max: 40, noNaN: true }),
      fc.double({ min: 0, max: 9000, noNaN: true }),
    ),
    devices: fc.subarray(["gpu:0", "gpu:1"]),
    step: fc.integer({ min: 1, max: 5 }),
  }),
  { minLength: 1, maxLength: 400 },
);

it("a lane gives exactly the spans of a window, one by one or by blocks, whatever order they came in (LN1, LN2)", () => {
  fc.assert(
    fc.property(
      spans,
      fc.double({ min: 0, max: 9000, noNaN: true }),
      fc.double({ min: 1, max: 5000, noNaN: true }),
      fc.integer({ min: 1, max: 99 }),
      (list, fromMs, lengthMs, part) => {
        const table = new SpanTable();
        const set = new LaneSet(table);
        for (const span of list) appendSpan(table, { worker: "rollout/0", name: "x", category: "compute", ...span });
        while (set.update(part)) {
          // as it comes in
        }
        const lane = set.lanes.find(({ label }) => label === "rollout/0")!;
        const starts = Array.from(lane.rows.subarray(0, lane.length), (row) => table.start[row]!);
        expect(starts).toEqual(starts.toSorted((a, b) => a - b));
        const toMs = fromMs + lengthMs;
        const inView = (row: number) => table.start[row]! <= toMs && table.start[row]! + table.duration[row]! >= fromMs;
        const seen: number[] = [];
        lane.visit(
          table,
          { fromMs, toMs, leastMs: 0 },
          (row) => seen.push(row),
          () => expect.unreachable(),
        );
        expect(seen.filter(inView).sort((a, b) => a - b)).toEqual(
          Array.from({ length: table.length }, (_, row) => row).filter(inView),
        );
        // All of it, in thin blocks: no time is lost.
        let covered = 0;
        const all = { fromMs: -1, toMs: 1e6, leastMs: 1e6 };
        lane.visit(
          table,
          all,
          (row) => {
            covered += table.duration[row]!;
          },
          (_, __, paints) => {
            for (const ms of paints) covered += ms;
          },
        );
        const total = list.reduce((sum, { durationMs }) => sum + durationMs, 0);
        expect(Math.abs(covered - total)).toBeLessThan(1e-3 * (1 + total));
        expect(set.steps.size).toBe(new Set(list.map(({ step }) => step)).size);
      },
    ),
    { numRuns: 60 },
  );
});

it("ticks are apart, and their texts differ", () => {
  fc.assert(
    fc.property(
      fc.double({ min: 0.001, max: 1e8, noNaN: true }),
      fc.integer({ min: 100, max: 3000 }),
      fc.double({ min: 0, max: 1e7, noNaN: true }),
      (spanMs, pixels, fromMs) => {
        const step = tickStepMs(spanMs, pixels);
        expect((step / spanMs) * pixels).toBeGreaterThanOrEqual(89.9);
        if (step < 0.001) return; // below what a clock resolves
        const first = Math.ceil(fromMs / step) * step;
        const texts = Array.from({ length: 5 }, (_, i) => tickText(first + i * step, step));
        expect(new Set(texts).size).toBe(texts.length);
      },
    ),
  );
});

it("configurations are compared by path, and curves over the steps of all", () => {
  expect(differences([{ a: { b: 1, c: [1] }, d: "x" }, { a: { b: 2, c: [1] } }])).toEqual([
    { path: "a.b", values: ["1", "2"] },
    { path: "d", values: ["x", undefined] },
  ]);
  const rows = [
    [
      { step: 1, reward: 0.1 },
      { step: 3, reward: Number.NaN },
    ],
    [{ step: 2, reward: 0.2 }],
  ];
  expect(overlay(rows, "reward")).toEqual({
    xs: [1, 2],
    values: [
      [0.1, null],
      [null, 0.2],
    ],
  });
});
