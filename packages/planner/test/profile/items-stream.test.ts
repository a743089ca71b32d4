import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { hiddenSeconds, streamedParts } from "../../src/auto/streamed-parts.ts";
import { expectedLongest } from "../../src/profile/longest-item.ts";
import { endsOf, streamedLengths } from "../../src/profile/streamed-items.ts";
import { fitTime, fittedSeconds } from "../../src/profile/time-fit.ts";
import { componentProfile } from "../synthetic-profile.ts";
import { lognormals } from "./lognormals.ts";

const spread = fc.double({ min: 0.1, max: 1, noNaN: true });

describe("items that stream through so many places", () => {
  test("last as long as drawn ones that each go to the place which is free first", () => {
    const drawn = lognormals(7);
    for (const [count, places, width] of [
      [64, 4, 0.6],
      [64, 16, 0.6],
      [64, 48, 0.8],
      [300, 40, 0.4],
      [2000, 64, 0.6],
    ] as const) {
      const rounds = 200;
      let sum = 0;
      for (let round = 0; round < rounds; round++) {
        const ends = new Array<number>(places).fill(0);
        for (let i = 0; i < count; i++) {
          const free = ends.reduce((best, end, at) => (end < ends[best]! ? at : best), 0);
          ends[free]! += drawn(width);
        }
        sum += Math.max(...ends);
      }
      expect(Math.abs(streamedLengths(count, places, width) / (sum / rounds) - 1)).toBeLessThan(0.05);
    }
  });

  test("never last longer with more places, nor shorter than their longest or their sum over places", () => {
    const of = fc.tuple(fc.integer({ min: 1, max: 200 }), spread);
    fc.assert(
      fc.property(of, ([count, width]) => {
        const few = [1, 2, 5, 20, 100, 200].map((places) => streamedLengths(count, places, width));
        for (const [i, places] of [1, 2, 5, 20, 100, 200].entries()) {
          if (i > 0) expect(few[i]!).toBeLessThanOrEqual(few[i - 1]! * 1.05);
          const sum = count * Math.exp(width ** 2 / 2);
          expect(few[i]!).toBeGreaterThanOrEqual(places < count ? sum / places - 1e-9 : 0);
          if (places > 1) expect(few[i]!).toBeGreaterThanOrEqual(expectedLongest(count, width) - 1e-9);
        }
      }),
      { numRuns: 40 },
    );
  });

  test("end in order, the last one at the end, and equal ones by the place", () => {
    const law = fc.record({
      count: fc.integer({ min: 1, max: 300 }),
      places: fc.integer({ min: 1, max: 300 }),
      spread: fc.double({ min: 0, max: 1, noNaN: true }),
      perLength: fc.double({ min: 0, max: 1, noNaN: true }),
      perItem: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(law, (items) => {
        const ends = endsOf(items);
        expect(ends).toHaveLength(Math.min(64, items.count));
        expect(ends.at(-1)).toBe(1);
        for (const [i, end] of ends.entries()) expect(end).toBeGreaterThanOrEqual(ends[i - 1] ?? 0);
      }),
    );
    const equal = { spread: 0, perLength: 1, perItem: 0 };
    expect(endsOf({ count: 6, places: 2, ...equal }).map((end) => Math.round(6 * end))).toEqual([2, 2, 4, 4, 6, 6]);
    expect(endsOf({ count: 6, places: 6, ...equal })).toEqual([1, 1, 1, 1, 1, 1]);
  });

  test("go on early where only a few are long: three quarters are out in half of the time", () => {
    const ends = endsOf({ count: 64, places: 64, spread: 0.8, perLength: 1, perItem: 0 });
    expect(ends[47]).toBeLessThan(0.5);
  });
});

describe("a component whose items stream", () => {
  const batch = 64;
  const law = fc.record({
    perItem: fc.double({ min: 0.001, max: 0.1, noNaN: true }),
    perLength: fc.double({ min: 0.5, max: 2, noNaN: true }),
    lengthSpread: fc.double({ min: 0.3, max: 1, noNaN: true }),
    luck: fc.double({ min: 0.8, max: 1.2, noNaN: true }),
  });

  test("is fitted by how long its places are taken, so that other chunks and devices follow", () => {
    fc.assert(
      fc.property(law, ({ perItem, perLength, lengthSpread, luck }) => {
        const ofAll = luck * perLength * expectedLongest(batch, lengthSpread);
        const ofPlaces = (items: number) => (perLength * streamedLengths(batch, items, lengthSpread) * items) / batch;
        const at = (devices: number, items: number) =>
          (perItem * items) / devices + (items >= batch ? ofAll : ofPlaces(items));
        const points = [
          [4, 64],
          [8, 64],
          [16, 64],
          [16, 4],
          [16, 16],
        ].map(([devices = 1, items = 1]) => ({ devices, items, seconds: at(devices, items) }));
        const fit = fitTime(points, { lengthSpread, devicesPerRank: 4, batch, streams: true });
        // Where the points lie on a simpler law as well, that one is taken.
        if (fit?.longest === undefined) return;
        expect(fit.longest.streamed).toBe(batch);
        const profile = { fit, lengthSpread, devicesPerRank: 4 };
        for (const [devices, items] of [
          [4, 16],
          [8, 32],
          [16, 8],
        ] as const) {
          const predicted = fittedSeconds(profile, { devices, items, isWhole: false }) ?? 0;
          expect(Math.abs(predicted / at(devices, items) - 1)).toBeLessThan(0.02);
        }
      }),
    );
  });

  test("has a rank's items go on from nothing to all, and those beyond its share as it did on average", () => {
    const fit = {
      base: 0,
      perItem: 0.1,
      alpha: 1,
      relativeError: 0,
      longest: { perLength: 1, ofAll: 4, streamed: 64 },
    };
    const profile = { fit, lengthSpread: 0.6 } as Parameters<typeof streamedParts>[0];
    const ranks = fc.record({ items: fc.integer({ min: 1, max: 100 }), places: fc.integer({ min: 1, max: 100 }) });
    fc.assert(
      fc.property(ranks, fc.array(fc.double({ min: 0, max: 2, noNaN: true })), (rank, parts) => {
        const partOf = streamedParts(profile, { ...rank, ranks: 2, devices: 4 });
        expect([partOf(0), partOf(1), partOf(2)]).toEqual([0, 1, 2]);
        const ordered = parts.sort((a, b) => a - b).map(partOf);
        for (const [i, at] of ordered.entries()) expect(at).toBeGreaterThanOrEqual((ordered[i - 1] ?? 0) - 1e-12);
      }),
    );
  });
});

test("what it costs to ask is hidden by items in other places where single ones were measured, and what a take computes is not", () => {
  const costs = { base: 0.004, perItem: 0.05, streams: true, devicesPerRank: 3 };
  const askSeconds = 0.0015;
  const single = { ...componentProfile(costs, { devices: [9], items: [3, 60] }), askSeconds };
  expect([1, 2, 8, "all"].map((places) => hiddenSeconds(single, places as number | "all"))).toEqual([
    0, 0.003, 0.003, 0,
  ]);
  expect(hiddenSeconds({ ...single, askSeconds: 0.1 }, 2)).toBe(0.004);
  expect(hiddenSeconds({ ...single, streams: false }, 2)).toBe(0);
  expect(hiddenSeconds({ ...componentProfile(costs, { devices: [9], items: [6, 60] }), askSeconds }, 2)).toBe(0);
});
