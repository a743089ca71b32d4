import type { DeviceSpec } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { divisibleBatch } from "../src/auto/divisible-batch.ts";
import { planFromProfile, predictPlan, resolvePlacement } from "../src/index.ts";
import { divisorsOf } from "../src/plan/model.ts";
import { chainProfile } from "./synthetic-profile.ts";

const cluster = (count: number): DeviceSpec[] =>
  Array.from({ length: count }, (_, index) => ({
    ...{ id: `gpu:${index}`, index, node: "here", kind: "gpu", memoryBytes: 2 ** 34 },
  }));

const chains = fc.record({
  batch: fc.oneof(fc.integer({ min: 16, max: 120 }), fc.constantFrom(17, 19, 37, 47, 59, 79, 83, 97, 113)),
  devices: fc.integer({ min: 2, max: 12 }),
  costs: fc.array(
    fc.record({
      base: fc.double({ min: 0, max: 0.02, noNaN: true }),
      perItem: fc.double({ min: 0.01, max: 0.1, noNaN: true }),
    }),
    { minLength: 2, maxLength: 3 },
  ),
});

test("a batch is searched for as one that can be cut in many ways, and is hardly larger", () => {
  for (let batch = 1; batch <= 5000; batch++) {
    const found = divisibleBatch(batch);
    expect(found).toBeGreaterThanOrEqual(batch);
    expect(found).toBeLessThanOrEqual(Math.max(batch + 3, 1.1 * batch));
    for (const [i, each] of divisorsOf(found).entries())
      if (i > 0) expect(each).toBeLessThanOrEqual(3 * divisorsOf(found)[i - 1]!);
  }
  for (const batch of [1, 8, 12, 42, 64, 256, 512, 1000]) expect(divisibleBatch(batch)).toBe(batch);
});

test("whatever its size, the plan of a mode that is found takes no longer than what the mode is by default", () => {
  const ratios: number[] = [];
  for (const { batch, devices: count, costs } of fc.sample(chains, 300)) {
    const names = costs.map((_, i) => `stage-${i}`);
    const measured = [...new Set([1, 2, 4, 8].filter((each) => each <= count))];
    const profile = chainProfile(Object.fromEntries(names.map((name, i) => [name, costs[i]!])), batch, measured);
    const devices = cluster(count);
    const components = names.map((name) => ({ name }));
    const target = { devices, components, batch };
    const found = planFromProfile(profile, { ...target, maxStaleness: 0 });
    for (const { mode, stepSeconds, plan } of found.alternatives) {
      expect(stepSeconds).toBeCloseTo(predictPlan(profile, plan, target)!, 6);
      if (mode === "hybrid") continue; // what it is by default says the user
      const byDefault = resolvePlacement({ mode, components, devices, batchItems: batch, maxStaleness: 0 });
      ratios.push(stepSeconds / predictPlan(profile, byDefault, target)!);
    }
  }
  // The search takes every chunk to wait for the rank with most of it, where ranks with fewer go on with the next.
  expect(Math.max(...ratios)).toBeLessThan(1.2);
  expect(ratios.filter((ratio) => ratio > 1.02).length).toBeLessThan(0.02 * ratios.length);
});
