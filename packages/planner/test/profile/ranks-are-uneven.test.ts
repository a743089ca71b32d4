import type { ComponentProfile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { measuredSeconds } from "../../src/index.ts";
import { expectedLongest } from "../../src/profile/longest-item.ts";
import { fitTime } from "../../src/profile/time-fit.ts";
import { itemSpread, unevennessAt } from "../../src/profile/unevenness.ts";

const batch = 240;

/** Measured on some counts of devices: a second an item and device on average, with items that differ by `spread`. */
function profileOf(counts: readonly number[], spread: number): ComponentProfile {
  const common = { items: batch, spread: 0, accepted: 5, rejected: 0, contended: false };
  const samples = counts.map((devices) => {
    const ofRank = spread / Math.sqrt(batch / devices);
    const unevenness = expectedLongest(devices, ofRank) / expectedLongest(1, ofRank);
    return { ...common, devices, seconds: (batch / devices) * unevenness, ...(devices > 1 ? { unevenness } : {}) };
  });
  const means = samples.map(({ devices, items }) => ({ devices, items, seconds: items / devices }));
  return {
    ...{ key: "k", devicesPerRank: 1, minDevices: 1, maxDevices: 64, samples, fit: fitTime(means), memory: [] },
    ...{ onloadSeconds: 0, offloadSeconds: 0, serialSeconds: 0 },
  };
}

test("of a whole batch the busiest rank counts, on devices that were measured or not, and of a chunk a rank as others are", () => {
  fc.assert(
    fc.property(fc.double({ min: 0, max: 1, noNaN: true }), fc.integer({ min: 2, max: 24 }), (spread, devices) => {
      const profile = profileOf([1, 4, 16], spread);
      expect(itemSpread(profile, devices)).toBeCloseTo(spread, 1);
      const [measured] = profileOf([devices], spread).samples;
      expect(measuredSeconds(profile, devices, batch, batch) / measured!.seconds).toBeCloseTo(1, 2);
      for (const items of [devices, 2 * devices, batch / 2])
        expect(measuredSeconds(profile, devices, items, batch) / (items / devices)).toBeCloseTo(1, 3);
    }),
  );
});

test("a rank alone is as busy as the busiest, and so is each where nothing is known", () => {
  const whole = { items: batch, wholeItems: batch };
  expect(unevennessAt(profileOf([1, 4], 0.5), 1, whole, 1)).toBe(1);
  expect(unevennessAt(profileOf([1], 0.5), 8, whole, 1)).toBe(1);
});
