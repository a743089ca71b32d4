import fc from "fast-check";
import { expect, test } from "vitest";
import { ResourceUsage, TenantUsage, timelineSeconds } from "../src/pool/resource-usage.ts";

test("the timeline adds up to what was held, second by second", () => {
  const changes = fc.array(
    fc.record({ afterMs: fc.integer({ min: 0, max: 4000 }), to: fc.integer({ min: 0, max: 9 }) }),
    {
      maxLength: 25,
    },
  );
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 5000 }), changes, (startMs, list) => {
      const usage = new ResourceUsage(["cpu"], startMs);
      const perMs: number[] = [];
      let nowMs = startMs;
      let held = 0;
      for (const { afterMs, to } of list) {
        for (let i = 0; i < afterMs; i++) perMs[nowMs + i] = held;
        nowMs += afterMs;
        usage.change("cpu", to - held, nowMs);
        held = to;
      }
      const { cpu } = usage.report(nowMs);
      expect(cpu!.held).toBe(held);
      expect(cpu!.heldSeconds).toBeCloseTo(perMs.reduce((sum, units) => sum + (units ?? 0), 0) / 1000, 6);
      const current = Math.floor(nowMs / 1000);
      const means = cpu!.timeline.map((_, i) => {
        const second = current - cpu!.timeline.length + i;
        let sum = 0;
        for (let ms = second * 1000; ms < (second + 1) * 1000; ms++) sum += perMs[ms] ?? 0;
        return sum / 1000;
      });
      expect(cpu!.timeline.length).toBeLessThanOrEqual(timelineSeconds);
      for (const [i, mean] of means.entries()) expect(cpu!.timeline[i]).toBeCloseTo(mean, 6);
    }),
    { numRuns: 60 },
  );
});

test("seconds that nobody asks for are forgotten", () => {
  const usage = new ResourceUsage(["cpu"], 0);
  usage.change("cpu", 3, 0);
  const { cpu } = usage.report(1_000_000_500);
  expect(cpu!.timeline).toEqual(new Array(timelineSeconds).fill(3));
});

test("a tenant is charged what it held, for as long as it held it, and those without anything are forgotten", () => {
  const change = fc.record({
    tenant: fc.constantFrom("a", "b"),
    resource: fc.constantFrom("cpu", "search"),
    to: fc.integer({ min: 0, max: 5 }),
    afterMs: fc.integer({ min: 0, max: 900 }),
  });
  fc.assert(
    fc.property(fc.array(change, { maxLength: 30 }), (changes) => {
      const usage = new TenantUsage();
      const held = new Map<string, number>();
      const seconds = new Map<string, number>();
      let nowMs = 0;
      for (const { tenant, resource, to, afterMs } of changes) {
        const key = `${tenant} ${resource}`;
        usage.change(tenant, resource, to - (held.get(key) ?? 0), nowMs);
        held.set(key, to);
        nowMs += afterMs;
        for (const [one, units] of held) seconds.set(one, (seconds.get(one) ?? 0) + (units * afterMs) / 1000);
      }
      const report = usage.report(nowMs);
      for (const [key, sum] of seconds) {
        const [tenant, resource] = key.split(" ") as [string, string];
        expect(report.get(tenant)![resource]).toBeCloseTo(sum, 9);
      }
    }),
  );
  const crowded = new TenantUsage();
  crowded.change("holds", "cpu", 1, 0);
  for (let i = 0; i < 5000; i++) for (const units of [1, -1]) crowded.change(`${i}`, "cpu", units, 0);
  const report = crowded.report(1000);
  expect(report.size).toBeLessThan(4100);
  expect(report.get("holds")).toEqual({ cpu: 1 });
});
