import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { allowedAtLeast, allowedAtMost, allowsUnits } from "../src/formulation/action-spec.ts";
import { SavedHistory } from "../src/formulation/saved-history.ts";
import { ActionHistory, ActionSpec, allowedUnits, type Elasticity } from "../src/index.ts";

const units = [1, 2, 3, 4, 6, 8];
const seconds = { type: "seconds", points: units.map((count) => ({ units: count, seconds: 4 / count })) } as const;
const curves: readonly (Elasticity | undefined)[] = [
  undefined,
  { type: "amdahl", serialShare: 0 },
  { type: "amdahl", serialShare: 0.5 },
  { type: "power", exponent: 0.7 },
  { type: "table", points: [{ units: 1, efficiency: 1 }] },
  seconds,
  { type: "function", efficiency: () => 0.5 },
];
const specs = ["a", "b"].flatMap((tenant) =>
  curves.flatMap((elasticity) =>
    [7, "history" as const, "unknown" as const].map((duration) =>
      ActionSpec.parse({ kind: "suite", cost: { cpu: [...units] }, key: "cpu", elasticity, duration, tenant }),
    ),
  ),
);
const stored = new Map([
  ["suite", { elasticity: curves[1]!, duration: 12, resource: "cpu", units: { min: 1, max: 8 } }],
]);

/** As a file would keep it. */
const written = (history: ActionHistory): unknown => JSON.parse(JSON.stringify(history.saved()));
const read = (text: unknown): ActionHistory => new ActionHistory(stored, SavedHistory.parse(text));

const execution = fc.record({
  spec: fc.nat({ max: specs.length - 1 }),
  units: fc.constantFrom(...units),
  seconds: fc.double({ min: 0.001, max: 1e6, noNaN: true }),
  times: fc.integer({ min: 1, max: 30 }),
});

describe("what was learned, saved and read again", () => {
  test("HE3: decides as what was never saved, at once and after whatever it then sees", () => {
    let numMeasured = 0;
    fc.assert(
      fc.property(fc.array(execution, { maxLength: 40 }), fc.nat({ max: 40 }), (executions, at) => {
        const whole = new ActionHistory(stored);
        let other = whole;
        const same = (): void => {
          for (const spec of specs) {
            expect(other.expect(spec)).toEqual(whole.expect(spec));
            if (other !== whole) expect(other.probe(spec, 8)).toBe(whole.probe(spec, 8));
          }
        };
        for (const [i, one] of executions.entries()) {
          if (i === at) {
            other = read(written(whole));
            expect(written(other)).toEqual(written(whole));
            same();
          }
          for (let n = 0; n < one.times; n++) {
            // In turn with others, as executions are compared between neighbours.
            const count = units[(units.indexOf(one.units) + n) % units.length]!;
            whole.observe(specs[one.spec]!, count, one.seconds);
            if (other !== whole) other.observe(specs[one.spec]!, count, one.seconds);
          }
          same();
        }
        if ([...whole.report().values()].some(({ source }) => source === "measured")) numMeasured++;
      }),
      { numRuns: 60 },
    );
    expect(numMeasured).toBeGreaterThan(3);
  });

  test("HE3: is bounded, of what was used last; what a file cannot say is left out alone", () => {
    const history = new ActionHistory();
    const of = (i: number) =>
      ActionSpec.parse({ ...specs[0]!, tenant: `t${i % 100}`, kind: `k${Math.floor(i / 100)}` });
    for (let i = 0; i < 70_000; i++) history.observe(of(i), 1, 1);
    const { durations } = history.saved();
    expect(durations.length).toBe(65_536);
    expect(durations.at(-1)).toMatchObject({ tenant: "t99", kind: "k699" });
    const free = { type: "seconds", points: [{ units: 1, seconds: 0 }] };
    const endless = ActionSpec.parse({ kind: "free", cost: { cpu: 1 }, key: "cpu", elasticity: free });
    const odd = new ActionHistory();
    for (let i = 0; i < 100; i++) odd.observe(endless, 1, 1);
    odd.observe(of(0), 1, 1);
    expect(SavedHistory.safeParse(written(odd)).success).toBe(true);
    expect(odd.saved().durations.length).toBeGreaterThan(0);
  });

  test.each([
    ["of units that were not allowed", { recent: [{ units: 5, seconds: 1, at: 0 }] }],
    ["of pairs in the wrong order", { pairs: [{ few: 4, many: 2, change: 0, at: 0 }] }],
    ["of more than is ever kept", { recent: Array.from({ length: 33 }, (_, at) => ({ units: 1, seconds: 1, at })) }],
    ["of a share that none is", { serialShare: 2 }],
    ["of endless seconds", { scale: Number.POSITIVE_INFINITY }],
    ["of seconds that are endless once multiplied", { scale: 1.7e308 }],
  ])("is refused where it says %s", (_, wrong) => {
    const history = new ActionHistory();
    for (let i = 0; i < 50; i++) history.observe(specs[3]!, units[i % 6]!, 3);
    const saved = history.saved();
    expect(SavedHistory.safeParse(saved).success).toBe(true);
    const curves = saved.curves.map((one) => ({ ...one, curve: { ...one.curve, ...wrong } }));
    expect(curves.length).toBe(1);
    expect(SavedHistory.safeParse({ ...saved, curves }).success).toBe(false);
  });

  test("units are told from the ends of a range, whatever lies between them", () => {
    const wide = { min: 1, max: 1e9 };
    const huge: ActionSpec = { ...specs[3]!, cost: { cpu: wide } };
    const history = new ActionHistory();
    for (let i = 0; i < 50; i++) history.observe(huge, 2 ** (i % 30), 3);
    const saved = history.saved();
    expect(saved.curves).toMatchObject([{ amount: wide }]);
    const other = new ActionHistory(undefined, saved);
    expect(other.expect(huge)).toEqual(history.expect(huge));
    expect(other.saved()).toEqual(saved);
    expect([1, 1e9, 0, 1e9 + 1, 1.5].map((count) => allowsUnits(wide, count))).toEqual([
      ...[true, true, false, false, false],
    ]);
    const number = fc.integer({ min: 1, max: 20 });
    const range = fc.tuple(number, number).map(([a, b]) => ({ min: Math.min(a, b), max: Math.max(a, b) }));
    const set = fc.array(number, { minLength: 1, maxLength: 8 });
    const limit = fc.integer({ min: 0, max: 44 }).map((twice) => twice / 2);
    fc.assert(
      fc.property(fc.oneof(number, range, set), limit, (amount, at) => {
        const all = allowedUnits(amount);
        expect(allowsUnits(amount, at)).toBe(all.includes(at));
        expect(allowedAtMost(amount, at)).toBe(all.findLast((count) => count <= at));
        expect(allowedAtLeast(amount, at)).toBe(all.find((count) => count >= at));
      }),
    );
  });

  test("what a file can say and multiplied is endless is not expected", () => {
    const history = new ActionHistory();
    for (let i = 0; i < 50; i++) history.observe(specs[3]!, units[i % 6]!, 3e99);
    const [long] = history.saved().curves;
    expect(long!.curve.scale).toBeGreaterThan(1e90);
    const vast = { ...specs[3]!, duration: 1.7e308 };
    expect(history.expect(vast).oneUnitSeconds).toBeUndefined();
    for (let i = 0; i < 50; i++) history.observe(specs[3]!, units[i % 6]!, 1e200);
    expect(history.saved().curves).toEqual([]);
  });
});
