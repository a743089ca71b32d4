import { chooseLeaving, type Movable } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";

const names = ["d0", "d1", "d2"];
const movables = fc.array(
  fc.record({
    devices: fc.subarray(names, { minLength: 1 }),
    bytes: fc.integer({ min: 0, max: 9 }),
    seconds: fc.integer({ min: 0, max: 5 }),
  }),
  { maxLength: 8 },
);
const missing = fc.record({ d0: fc.integer({ min: -5, max: 20 }), d1: fc.integer({ min: -5, max: 20 }) });

/** What is missing once these have left; nobody can give more than all of them have. */
function without(short: Readonly<Record<string, number>>, all: readonly Movable[], taken: readonly Movable[]) {
  const on = (device: string, those: readonly Movable[]) =>
    those.reduce((sum, { devices, bytes }) => sum + (devices.includes(device) ? bytes : 0), 0);
  return Object.entries(short).map(([device, bytes]) => Math.min(bytes, on(device, all)) - on(device, taken));
}

const costOf = (taken: readonly Movable[]) => [
  taken.reduce((sum, { seconds }) => sum + seconds, 0),
  taken.reduce((sum, { bytes }) => sum + bytes, 0),
];

test("MT1, MT2: what leaves makes room, and takes the fewest seconds, then the fewest bytes, of all sets that do", () => {
  fc.assert(
    fc.property(missing, movables, (short, all) => {
      const left = new Map(Object.entries(short));
      const chosen = [...chooseLeaving(left, all, "seconds")];
      expect(Math.max(...without(short, all, chosen))).toBeLessThanOrEqual(0);
      for (const [device, bytes] of Object.entries(short))
        expect(left.get(device)).toBe(
          bytes - (costOf(chosen.filter(({ devices }) => devices.includes(device)))[1] ?? 0),
        );
      const [seconds, bytes] = costOf(chosen) as [number, number];
      for (let mask = 0; mask < 2 ** all.length; mask++) {
        const taken = all.filter((_, at) => (mask >> at) & 1);
        if (Math.max(...without(short, all, taken)) > 0) continue;
        const [otherSeconds, otherBytes] = costOf(taken) as [number, number];
        expect(seconds < otherSeconds || (seconds === otherSeconds && bytes <= otherBytes)).toBe(true);
      }
    }),
  );
});

test("MT1: among many that compete, what leaves makes room, and nothing leaves in vain", () => {
  const many = fc.array(
    fc.record({
      devices: fc.subarray(names, { minLength: 1 }),
      bytes: fc.integer({ min: 1, max: 9 }),
      seconds: fc.integer({ min: 0, max: 5 }),
    }),
    { minLength: 30, maxLength: 40 },
  );
  fc.assert(
    fc.property(missing, many, fc.constantFrom("age" as const, "seconds" as const), (short, all, by) => {
      const chosen = [...chooseLeaving(new Map(Object.entries(short)), all, by)];
      expect(Math.max(...without(short, all, chosen))).toBeLessThanOrEqual(0);
      for (const each of chosen)
        expect(
          Math.max(
            ...without(
              short,
              all,
              chosen.filter((other) => other !== each),
            ),
          ),
        ).toBeGreaterThan(0);
    }),
  );
});

test("MT2: of equal ones the least recently used leaves", () => {
  const all = [1, 2, 3].map((id) => ({ id, devices: ["d0"], bytes: 4, seconds: 1 }));
  const choose = (by: "age" | "seconds") => [...chooseLeaving(new Map([["d0", 7]]), all, by)].map(({ id }) => id);
  expect([choose("age"), choose("seconds")]).toEqual([
    [1, 2],
    [1, 2],
  ]);
});
