import { SpanCategory, type TraceRecord } from "@treadle/contracts";
import fc from "fast-check";
import { expect, it } from "vitest";
import { batchOf, traceColumns, traceLine } from "../src/trace-line.ts";

const startMs = fc.double({ min: 1.79e12, max: 1.79e12 + 1e7, noNaN: true });
const text = fc.oneof(fc.string({ unit: "binary", maxLength: 8 }), fc.constantFrom("decode", "train", "__proto__"));
const common = {
  name: text,
  category: fc.constantFrom(...SpanCategory.options),
  startMs,
  step: fc.option(fc.nat(), { nil: undefined }),
  devices: fc.option(fc.array(text, { maxLength: 3 }), { nil: undefined }),
  parent: fc.option(fc.constant("0123456789abcdef"), { nil: undefined }),
  attributes: fc.option(
    fc.dictionary(
      fc.string({ maxLength: 4 }),
      fc.oneof(fc.string(), fc.double({ noDefaultInfinity: true, noNaN: true }), fc.boolean(), fc.constant(null)),
    ),
    { nil: undefined },
  ),
};
const span = fc.record({
  kind: fc.constant("span" as const),
  ...common,
  durationMs: fc.oneof(fc.constant(0), fc.double({ min: 0, max: 1e6, noNaN: true })),
  flowOut: fc.option(text, { nil: undefined }),
  flowIn: fc.option(text, { nil: undefined }),
  id: fc.option(fc.constant("fedcba9876543210"), { nil: undefined }),
});
const instant = fc.record({ kind: fc.constant("instant" as const), ...common });
const values = fc.dictionary(fc.string({ maxLength: 4 }), fc.double({ noDefaultInfinity: true, noNaN: true }));
const counter = fc.record({ kind: fc.constant("counter" as const), name: text, startMs, values });
const batch = fc.record({
  worker: text,
  pid: fc.nat(),
  dropped: fc.nat(),
  records: fc.array(fc.oneof(span, instant, counter), { maxLength: 12 }),
});

/** Fields that are there, and times in the tenths of a microsecond that are kept. */
const rounded = (record: TraceRecord) =>
  JSON.parse(JSON.stringify(record), (key, value) =>
    key === "startMs" || key === "durationMs" ? Math.round(value * 1e4) / 1e4 : value,
  );
const endOf = (record: TraceRecord): number => record.startMs + (record.kind === "span" ? record.durationMs : 0);

it("TN1 what is read is what was written, in the order of the ends", () => {
  fc.assert(
    fc.property(batch, (written) => {
      const columns = traceColumns(JSON.parse(traceLine(written)));
      const { records, ...rest } = batchOf(columns!);
      const { records: given, ...others } = written;
      expect(rest).toEqual(others);
      const ends = records.map(endOf);
      expect(ends).toEqual(ends.toSorted((a, b) => a - b));
      const texts = (list: readonly TraceRecord[]) =>
        list.map((one) => JSON.stringify(rounded(one), Object.keys(rounded(one)).sort())).sort();
      expect(texts(records)).toEqual(texts(given));
    }),
    { numRuns: 300 },
  );
});

it("keeps moments of today to the last bit that a number has for them", () => {
  fc.assert(
    fc.property(startMs, (at) => {
      const record = { kind: "instant", name: "x", category: "step", startMs: at } as const;
      expect(
        traceColumns(JSON.parse(traceLine({ worker: "w/0", pid: 1, dropped: 0, records: [record] })))!.startMs,
      ).toEqual([at]);
    }),
    { numRuns: 1000 },
  );
});

const odd = fc.oneof(
  fc.constantFrom(undefined, null, -2, 0.5, 1e9, 1e308, "1", true, [], {}, [[]]),
  fc.array(fc.integer({ min: -2, max: 3 }), { maxLength: 12 }),
);

it("TN2 a line of which something is otherwise is read as what it says, or is none", () => {
  fc.assert(
    fc.property(batch, fc.nat(), odd, (written, which, value) => {
      const line = JSON.parse(traceLine(written));
      const key = Object.keys(line)[which % Object.keys(line).length]!;
      const columns = traceColumns({ ...line, [key]: value });
      if (columns === undefined) return;
      const { names, categories, deviceSets, startMs: starts } = columns;
      expect(columns.name.every((n) => typeof names[n] === "string")).toBe(true);
      expect(columns.category.every((n) => typeof categories[n] === "string")).toBe(true);
      expect(columns.devices.every((n) => n === -1 || Array.isArray(deviceSets[n]))).toBe(true);
      for (const column of [columns.name, columns.category, columns.devices, columns.step, columns.durationMs])
        expect(column).toHaveLength(starts.length);
      expect(starts.every(Number.isFinite)).toBe(true);
    }),
    { numRuns: 1000 },
  );
  for (const none of [null, 1, "x", [], {}, { step: 1 }, { worker: "w/0", pid: 1, dropped: 0, records: [] }])
    expect(traceColumns(none)).toBeUndefined();
});

it("counts a record that is years from all others as dropped, and keeps those", () => {
  const at = (startMs: number, durationMs = 1, step?: number) =>
    ({ kind: "span", name: "x", category: "compute", startMs, durationMs, step }) as const;
  const odd = [at(5), at(1.79e12, 1e12), at(Number.NaN), at(1.79e12, -1), at(1.79e12, 1, 1.5), at(9e15)];
  const good = Array.from({ length: 7 }, (_, i) => at(1.79e12 + i));
  const columns = traceColumns(
    JSON.parse(traceLine({ worker: "w/0", pid: 1, dropped: 2, records: [...odd, ...good] })),
  );
  expect([columns!.dropped, columns!.startMs]).toEqual([2 + odd.length, good.map(({ startMs }) => startMs)]);
});
