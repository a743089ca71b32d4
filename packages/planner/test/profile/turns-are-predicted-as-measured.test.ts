import { type DeviceSpec, median, type Plan, type Profile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { predictPlan } from "../../src/auto/predict-plan.ts";
import { type PlacementComponent, resolvePlacement } from "../../src/index.ts";
import { ProfileBuilder } from "../../src/profile/profile-builder.ts";
import { layoutOf } from "../../src/profile/running-layout.ts";
import { observed } from "./observed-calls.ts";

const memoryBytes = 80;
/** Any number of ranks divides it: whichever begins first has the same share. */
const batch = 60;

const stage = fc.record({
  devicesPerRank: fc.integer({ min: 1, max: 3 }),
  mostRanks: fc.integer({ min: 1, max: 6 }),
  perItemMs: fc.integer({ min: 5, max: 50 }),
  onloadMs: fc.integer({ min: 1, max: 200 }),
  offloadMs: fc.integer({ min: 1, max: 200 }),
  // No two fit together: each is swapped, as it was observed.
  memoryBytes: fc.integer({ min: 41, max: 79 }),
});

const workload = fc.record({
  stages: fc.array(stage, { minLength: 2, maxLength: 6 }),
  numDevices: fc.integer({ min: 3, max: 7 }),
  overheadsMs: fc.array(fc.integer({ min: 0, max: 500 }), { minLength: 1, maxLength: 3 }),
});

test("a step in turn is predicted as it was measured, however often ranks of unequal width are swapped in it", () => {
  let numSwappedAgain = 0;
  fc.assert(
    fc.property(workload, ({ stages, numDevices, overheadsMs }) => {
      const devices = Array.from(
        { length: numDevices },
        (_, index): DeviceSpec => ({ id: `gpu:${index}`, index, node: "n", kind: "gpu", memoryBytes }),
      );
      const components = stages.map(
        ({ devicesPerRank, mostRanks }, i): PlacementComponent => ({
          name: `c${i}`,
          devicesPerRank,
          ranks: { min: 1, max: Math.min(mostRanks, Math.floor(numDevices / devicesPerRank)) },
        }),
      );
      const plan = resolvePlacement({ mode: "temporal", components, devices, batchItems: batch, maxStaleness: 0 });
      const calls = stages.flatMap(({ perItemMs, onloadMs, offloadMs, memoryBytes }, i) => {
        const { length: numRanks } = plan.components[`c${i}`]!.ranks;
        const last = i === stages.length - 1;
        return Array.from({ length: numRanks }, (_, rank) => {
          const items = batch / numRanks;
          return observed(
            { component: `c${i}`, rank, busyMs: perItemMs * items, onloadMs, offloadMs, memoryBytes },
            { takes: [{ channel: `to-${i}`, items }], puts: last ? [] : [{ channel: `to-${i + 1}`, items }] },
          );
        });
      });
      const inTurn = stages.reduce((sum, { perItemMs, onloadMs, offloadMs }, i) => {
        const items = batch / plan.components[`c${i}`]!.ranks.length;
        return sum + perItemMs * items + onloadMs + offloadMs;
      }, 0);
      // Longer than any order of swaps takes.
      const seconds = overheadsMs.map((ms) => (stages.length * inTurn + ms) / 1000);
      const builder = new ProfileBuilder(batch);
      for (const each of seconds) builder.add({ layout: layoutOf(plan), seconds: each, calls });
      const traits = components.map(({ name, devicesPerRank = 1, ranks }) => {
        const most = (ranks?.max ?? 1) * devicesPerRank;
        return [name, { key: name, devicesPerRank, minDevices: devicesPerRank, maxDevices: most }] as const;
      });
      const header = { workflow: "w", createdAt: "2026-01-01T00:00:00Z", hardware: { key: "k", description: "" } };
      const profile = builder.build(header, new Map(traits), { devices, components });
      expect(predictPlan(profile, plan, { devices, batch, components })).toBeCloseTo(median(seconds), 6);
      const least = median(seconds) - profile.overheadSeconds;
      if (least > (inTurn + 1) / 1000) numSwappedAgain++;
    }),
  );
  expect(numSwappedAgain, "steps that swap something twice are among those drawn").toBeGreaterThan(0);
});

test("what a plan that was not measured takes besides its components is known by rank, of all that were", () => {
  const devices = [0, 1].map(
    (index): DeviceSpec => ({ id: `gpu:${index}`, index, node: "n", kind: "gpu", memoryBytes }),
  );
  const components = ["a", "b"].map((name): PlacementComponent => ({ name, ranks: { min: 1, max: 2 } }));
  const placed = (mode: "temporal" | "spatial", granularity: "all" | number): Plan => {
    const plan = resolvePlacement({ mode, components, devices, batchItems: batch, maxStaleness: 0 });
    return { ...plan, granularity: { default: granularity, channels: {} } };
  };
  const [turns, apart] = [placed("temporal", "all"), placed("spatial", "all")];
  const builder = new ProfileBuilder(batch);
  const measure = (plan: Plan, seconds: number): void => {
    const calls = ["a", "b"].flatMap((component) => {
      const { length } = plan.components[component]!.ranks;
      const moved = (channel: string) => [{ channel, items: batch / length }];
      const flow = component === "a" ? { takes: moved("in"), puts: moved("to-b") } : { takes: moved("to-b") };
      return Array.from({ length }, (_, rank) => observed({ component, rank, busyMs: 600 / length }, flow));
    });
    builder.add({ layout: layoutOf(plan), seconds, calls });
  };
  measure(turns, 0.6 + 0.08);
  for (const seconds of [1.19, 1.23]) measure(apart, seconds);
  const traits = new Map(["a", "b"].map((key) => [key, { key, devicesPerRank: 1, minDevices: 1, maxDevices: 2 }]));
  const header = { workflow: "w", createdAt: "2026-01-01T00:00:00Z", hardware: { key: "k", description: "" } };
  const profile = builder.build(header, traits, { devices, components });
  // 80 ms of four ranks, and 10 of two: no line that begins at 0 or above and does not fall is nearer to both.
  expect(profile).toMatchObject({
    overheadSeconds: expect.closeTo(0.08, 6),
    rankOverheadSeconds: expect.closeTo(0.02, 6),
    baseOverheadSeconds: 0,
  });
  const without: Profile = { ...profile, overheadSeconds: 0, rankOverheadSeconds: 0 };
  const besides = (plan: Plan): number => {
    const [all, less] = [profile, without].map((each) => predictPlan(each, plan, { devices, batch, components })!);
    return all! - less!;
  };
  expect(besides(turns)).toBeCloseTo(0.08, 6);
  expect(besides(placed("spatial", 10))).toBeCloseTo(2 * 0.02, 6);
  expect(besides(placed("temporal", 10))).toBeCloseTo(4 * 0.02, 6);
});

test("what a step of a cycle takes besides its components is known by its replay, as no other way tells how often they change hands", () => {
  const devices = [0, 1].map(
    (index): DeviceSpec => ({ id: `gpu:${index}`, index, node: "n", kind: "gpu", memoryBytes }),
  );
  const components = ["policy", "simulator"].map((name): PlacementComponent => ({ name, ranks: { min: 1, max: 1 } }));
  const calls = [
    observed(
      { component: "policy", busyMs: 300 },
      { takes: [{ channel: "seen", items: batch }], puts: [{ channel: "done", items: batch }] },
    ),
    observed(
      { component: "simulator", busyMs: 200 },
      { takes: [{ channel: "done", items: batch }], puts: [{ channel: "seen", items: batch }] },
    ),
  ];
  const traits = new Map(
    components.map(({ name: key }) => [key, { key, devicesPerRank: 1, minDevices: 1, maxDevices: 1 }]),
  );
  const header = { workflow: "w", createdAt: "2026-01-01T00:00:00Z", hardware: { key: "k", description: "" } };
  const plan = resolvePlacement({ mode: "temporal", components, devices, batchItems: batch, maxStaleness: 0 });
  const built = (seconds: number): Profile => {
    const builder = new ProfileBuilder(batch);
    builder.add({ layout: layoutOf(plan), seconds, calls });
    return builder.build(header, traits, { devices, components });
  };
  const least = predictPlan(built(0.01), plan, { devices, batch, components })!;
  expect(least).toBeGreaterThan(0);
  const profile = built(least + 0.07);
  expect(profile.graph.cycles).toHaveLength(1);
  expect(profile.overheadSeconds).toBeCloseTo(0.07, 6);
  expect(predictPlan(profile, plan, { devices, batch, components })).toBeCloseTo(least + 0.07, 6);
});
