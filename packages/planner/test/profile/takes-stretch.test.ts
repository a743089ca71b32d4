import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { drawnBy, uniformOf } from "../../src/auto/replayed-draws.ts";
import { dealOf, expectedBusiest, expectedLongest } from "../../src/profile/longest-item.ts";
import { stretchOf, type TakenWork } from "../../src/profile/take-stretch.ts";
import { itemSpread } from "../../src/profile/unevenness.ts";
import { chainProfile } from "../synthetic-profile.ts";
import { lognormals } from "./lognormals.ts";

const batch = 24;
const profile = (unevenness: number | undefined, ranks = 4) => {
  const { stage } = chainProfile({ stage: { perItem: 0.1 } }, batch, [1, ranks]).components;
  return {
    ...stage!,
    samples: stage!.samples.map((sample) =>
      sample.devices === ranks && sample.items === batch && unevenness !== undefined
        ? { ...sample, unevenness }
        : sample,
    ),
  };
};
const uniforms = Array.from({ length: 2000 }, (_, i) => (i + 0.5) / 2000);
const mean = (values: readonly number[]): number => values.reduce((sum, each) => sum + each, 0) / values.length;

type Measured = Pick<ReturnType<typeof profile>, "samples"> & Parameters<typeof stretchOf>[0]["profile"];

/** As a replay draws it. */
function drawnStretch(measured: Measured, ranks: number) {
  const lengthSpread = measured.fit?.longest ? (measured.lengthSpread ?? 0) : 0;
  const stretch = stretchOf({
    ...{ profile: measured, lengthSpread, itemSpread: itemSpread(measured, ranks), concurrency: ranks },
  });
  return (
    stretch &&
    ((work: Omit<TakenWork, "batch" | "itemsPerStep">, uniform: number): number =>
      stretch({ ...work, batch, itemsPerStep: batch }, drawnBy(uniform, work.taken, lengthSpread)))
  );
}

describe("what a rank takes", () => {
  test("is as long as is expected where ranks were not seen to differ", () => {
    expect(drawnStretch(profile(undefined), 4)).toBeUndefined();
    expect(drawnStretch(profile(1), 4)).toBeUndefined();
  });

  test("is on average as long as was measured: a chunk of one rank, a whole batch of the busiest", () => {
    fc.assert(
      fc.property(
        fc.double({ min: 1.01, max: 1.1, noNaN: true }),
        fc.constantFrom(2, 3, 4, 6, 8),
        (unevenness, ranks) => {
          const stretch = drawnStretch(profile(unevenness, ranks), ranks)!;
          const chunk = { taken: 2, seconds: 0.2, items: 2 * ranks, devices: ranks };
          expect(Math.abs(mean(uniforms.map((uniform) => stretch(chunk, uniform))) - 1)).toBeLessThan(0.02);
          const whole = { taken: batch / ranks, seconds: 1, items: batch, devices: ranks };
          // One of them alone takes less than the busiest, by as much as was seen.
          expect(Math.abs(mean(uniforms.map((uniform) => stretch(whole, uniform))) - 1 / unevenness)).toBeLessThan(
            0.01,
          );
          expect(stretch(whole, 0.999)).toBeGreaterThan(1);
        },
      ),
    );
  });

  test("makes the busiest rank take on average what was measured of it, also where some have one item less", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 12 }),
        fc.integer({ min: 2, max: 40 }),
        fc.double({ min: 0.01, max: 0.2, noNaN: true }),
        (ranks, items, spread) => {
          fc.pre(items > ranks);
          const { most, numMost } = dealOf(items, ranks);
          const { stage } = chainProfile({ stage: { perItem: 0.1 } }, items, [ranks]).components;
          const stretch = stretchOf({
            ...{ profile: stage!, lengthSpread: 0, itemSpread: spread * Math.sqrt(most), concurrency: ranks },
          });
          const unevenness = expectedBusiest({ ranks, most, numMost }, spread) / expectedLongest(1, spread);
          const drawn = lognormals(ranks * items);
          const times = Array.from({ length: 2000 }, () =>
            Array.from({ length: ranks }, (_, rank) => {
              const taken = most - (rank < numMost ? 0 : 1);
              // What was measured is what the busiest took; a rank takes less on average.
              const seconds = taken === most ? 1 : taken / most / unevenness;
              const work = { taken, seconds, itemsPerStep: items, devices: ranks, batch: items };
              const share = taken === most ? items : taken * ranks;
              return (
                seconds *
                stretch!({ ...work, items: share }, { deviate: () => Math.log(drawn(1)), longest: () => Number.NaN })
              );
            }),
          );
          expect(Math.abs(mean(times.map((each) => Math.max(...each))) - 1)).toBeLessThan(0.03);
        },
      ),
      { numRuns: 40 },
    );
  });

  test("of unequal items is as long as the longest of them, as far as that one's part of the time goes", () => {
    const spread = 0.5;
    const { fit, ...rest } = profile(undefined);
    const unequal = { ...rest, lengthSpread: spread, fit: { ...fit!, longest: { perLength: 0.05, ofAll: 0.4 } } };
    const stretch = drawnStretch(unequal, 4)!;
    const whole = { taken: 6, seconds: 0.8, items: batch, devices: 4 };
    const ratio = expectedLongest(6, spread) / expectedLongest(24, spread);
    expect(mean(uniforms.map((uniform) => stretch(whole, uniform)))).toBeCloseTo(0.5 + 0.5 * ratio, 2);
    const streamed = { ...unequal, fit: { ...unequal.fit, longest: { ...unequal.fit.longest, streamed: batch } } };
    const inChunks = drawnStretch(streamed, 4)!;
    expect(inChunks({ taken: 2, seconds: 0.2, items: 8, devices: 4 }, 0.99)).toBe(1);
  });
});

test("a take draws each part of what may be drawn in one of the steps, and others in other orders", () => {
  const orders = new Set<string>();
  for (const of of [3, 7] as const) {
    for (let label = 0; label < 200; label++) {
      const drawn = Array.from({ length: of }, (_, step) => uniformOf(step + 2, of, 5, label, 1));
      expect(drawn.map((each) => Math.floor(each * of)).toSorted()).toEqual(drawn.map((_, i) => i));
      orders.add(drawn.map((each) => Math.floor(each * of)).join());
    }
  }
  expect(orders.size).toBeGreaterThan(3 * 2 + 7 * 5);
});
