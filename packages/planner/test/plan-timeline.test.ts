import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type PlanTimeline, planFromProfile } from "../src/index.ts";
import { type Costs, chainProfile, cluster } from "./synthetic-profile.ts";

const costs: fc.Arbitrary<Costs> = fc.record({
  base: fc.double({ min: 0, max: 3, noNaN: true }),
  perItem: fc.double({ min: 0.01, max: 3, noNaN: true }),
  alpha: fc.constantFrom(0, 0.5, 1),
  onloadSeconds: fc.constantFrom(0, 1.5),
  offloadSeconds: fc.constantFrom(0, 0.5),
  serialSeconds: fc.constantFrom(0, 2),
  memory: fc.constantFrom([], [{ devices: 1, bytesPerDevice: 50 * 2 ** 30 }]),
});
const names = ["a", "b", "c"];
const profileOf = (chain: readonly Costs[]) =>
  chainProfile(Object.fromEntries(chain.map((cost, i) => [names[i]!, cost])));
const plan = (chain: readonly Costs[], devices = 6) =>
  planFromProfile(profileOf(chain), {
    devices: cluster(devices),
    batch: 64,
    maxStaleness: 0,
    components: chain.map((_, i) => ({ name: names[i]! })),
  });

describe("the timeline", () => {
  test("ends when the step is predicted to", () => {
    fc.assert(
      fc.property(fc.array(costs, { minLength: 2, maxLength: 3 }), (chain) => {
        for (const { timeline, stepSeconds } of plan(chain).alternatives)
          expect(timeline.seconds).toBeCloseTo(stepSeconds, 9);
      }),
      { numRuns: 40 },
    );
  });

  test("has the device that is busiest work all the time where components take turns on all of them", () => {
    fc.assert(
      fc.property(fc.array(costs, { minLength: 2, maxLength: 3 }), (chain) => {
        const turns = plan(chain).alternatives.find(({ mode }) => mode === "temporal")!;
        const [{ segments }] = turns.timeline.lanes as [PlanTimeline["lanes"][number]];
        const busy = segments.reduce((sum, each) => sum + (each.endSeconds - each.startSeconds) * each.busyShare, 0);
        expect(busy).toBeLessThanOrEqual(turns.stepSeconds * (1 + 1e-9));
        // In one turn this device may be the last to end, and in the next another.
        expect(busy).toBeGreaterThan(0.8 * turns.stepSeconds);
      }),
      { numRuns: 40 },
    );
  });

  test("no device does two things at once", () => {
    fc.assert(
      fc.property(fc.array(costs, { minLength: 2, maxLength: 3 }), (chain) => {
        for (const { timeline } of plan(chain).alternatives) {
          for (const { segments } of timeline.lanes) {
            const sorted = [...segments].sort((x, y) => x.startSeconds - y.startSeconds);
            for (const [i, segment] of sorted.entries()) {
              expect(segment.endSeconds).toBeLessThanOrEqual(timeline.seconds * (1 + 1e-9));
              if (i > 0) expect(segment.startSeconds).toBeGreaterThanOrEqual(sorted[i - 1]!.endSeconds - 1e-6);
            }
          }
        }
      }),
      { numRuns: 40 },
    );
  });

  test("every device is in one lane, and every component runs", () => {
    const { alternatives } = plan([{ perItem: 1 }, { perItem: 1, alpha: 0 }, { perItem: 2 }]);
    for (const { timeline, plan: placed } of alternatives) {
      const used = new Set(Object.values(placed.components).flatMap(({ ranks }) => ranks.flatMap((r) => r.devices)));
      expect(timeline.lanes.reduce((sum, lane) => sum + lane.numDevices, 0)).toBe(used.size);
      const ran = new Set(timeline.lanes.flatMap((lane) => lane.segments.map((segment) => segment.component)));
      for (const name of names) expect(ran.has(name)).toBe(true);
    }
  });
});

describe("more devices", () => {
  test("are worth most for the bottleneck of a pipeline, and nothing for a stage that waits for it", () => {
    const heavy = { perItem: 4, alpha: 0.7 };
    const { moreDevices, plan: chosen } = plan([{ perItem: 1, alpha: 0 }, heavy], 4);
    expect(chosen.mode).toBe("spatial");
    expect(moreDevices[0]).toMatchObject({ components: ["b"] });
    expect(moreDevices[0]!.savedSeconds).toBeGreaterThan(0);
    expect(moreDevices.at(-1)!.savedSeconds).toBeCloseTo(0, 9);
  });

  test("help all that take turns at once", () => {
    const { moreDevices, plan: chosen, predicted } = plan([{ perItem: 4 }, { perItem: 4 }], 4);
    expect(chosen.mode).toBe("temporal");
    expect(moreDevices).toMatchObject([{ components: ["a", "b"], devices: 1, savedSeconds: expect.any(Number) }]);
    // A fifth would be 12.8 items for each of five; a rank that takes whole items has 13.
    expect(moreDevices[0]!.savedSeconds).toBeGreaterThan(0.17 * predicted.stepSeconds);
    expect(moreDevices[0]!.savedSeconds).toBeLessThan(0.2 * predicted.stepSeconds);
  });
});
