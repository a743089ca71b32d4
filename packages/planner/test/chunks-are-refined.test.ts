import type { DeviceSpec } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { planFromProfile, predictPlan } from "../src/index.ts";
import { chainProfile } from "./synthetic-profile.ts";

const devicesOf = (count: number): DeviceSpec[] =>
  Array.from({ length: count }, (_, index) => ({
    ...{ id: `gpu:${index}`, index, node: "n", kind: "gpu", memoryBytes: 2 ** 36 },
  }));

test("no chunk of a plan's could be halved or doubled with a gain, on drawn chains", () => {
  const stage = fc.record({
    perItem: fc.double({ min: 0.01, max: 0.2, noNaN: true }),
    base: fc.constantFrom(0, 0.01, 0.05),
    streams: fc.boolean(),
  });
  let numChunked = 0;
  fc.assert(
    fc.property(
      fc.array(stage, { minLength: 2, maxLength: 3 }),
      fc.integer({ min: 3, max: 9 }),
      fc.integer({ min: 12, max: 40 }),
      (stages, numDevices, batch) => {
        const named = Object.fromEntries(stages.map((each, at) => [`s${at}`, each]));
        const profile = chainProfile(named, batch, [1, 2, 4]);
        const devices = devicesOf(numDevices);
        const components = Object.keys(named).map((name) => ({ name }));
        const { alternatives } = planFromProfile(profile, { devices, batch, maxStaleness: 0, components });
        for (const { plan, stepSeconds, mode } of alternatives) {
          const { channels } = plan.granularity;
          if (plan.capacity !== undefined) continue;
          for (const [name, items] of Object.entries(channels)) {
            if (items === "all") continue;
            numChunked++;
            for (const factor of [0.5, 2]) {
              const most = profile.graph.channels[name]!.itemsPerStep;
              const other = Math.max(1, Math.min(Math.round(items * factor), most));
              const granularity = { ...plan.granularity, channels: { ...channels, [name]: other } };
              const seconds = predictPlan(profile, { ...plan, granularity }, { devices, batch, components })!;
              expect(seconds, `${mode}: '${name}' ${other} in place of ${items}`).toBeGreaterThan(0.989 * stepSeconds);
            }
          }
        }
      },
    ),
    { numRuns: 40 },
  );
  expect(numChunked).toBeGreaterThan(20);
});
