import { ManualClock, settle } from "@treadle/contracts/testing";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { FairShares } from "../src/decide/fair-shares.ts";
import { ActionPool, CpuManager, QuotaManager } from "../src/index.ts";

const capacities = new Map([
  ["cpu", 8],
  ["search", 2],
]);

describe("shares", () => {
  test("FS1 service is the integral of the dominant share, whatever was expected", () => {
    const change = fc.record({
      resource: fc.constantFrom("cpu", "search"),
      units: fc.integer({ min: 0, max: 4 }),
      afterMs: fc.integer({ min: 1, max: 500 }),
      expectedSeconds: fc.double({ min: 0, max: 100, noNaN: true }),
    });
    fc.assert(
      fc.property(
        fc.array(change, { minLength: 1, maxLength: 30 }),
        fc.integer({ min: 1, max: 9 }),
        (changes, weight) => {
          const shares = new FairShares(capacities, new Map([["t", weight]]));
          const held = new Map<string, number>();
          let now = 0;
          let service = 0;
          for (const [i, { resource, units, afterMs, expectedSeconds }] of changes.entries()) {
            shares.change("t", resource, units - (held.get(resource) ?? 0), now);
            held.set(resource, units);
            shares.begins(String(i), { tenant: "t", share: 1, expectedSeconds }, now);
            expect(shares.levelOf("t", now)).toBeGreaterThanOrEqual(shares.serviceOf("t", now));
            now += afterMs;
            shares.ends(String(i), "t");
            const dominant = Math.max((held.get("cpu") ?? 0) / 8, (held.get("search") ?? 0) / 2);
            service += (dominant * afterMs) / 1000 / weight;
            expect(shares.levelOf("t", now)).toBeCloseTo(service, 9);
          }
        },
      ),
    );
  });

  test("FS2 who comes back starts level with the least served of those who are active, however long it was away", () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 8 }), { minLength: 1, maxLength: 5 }), (units) => {
        const shares = new FairShares(capacities);
        for (const [i, count] of units.entries()) shares.change(`t${i}`, "cpu", count, 0);
        shares.waits("late", 1, 10_000);
        expect(shares.levelOf("late", 10_000)).toBeCloseTo((Math.min(...units) / 8) * 10, 9);
      }),
    );
  });
});

type Load = { readonly seconds: number; readonly cores: number; readonly search?: number };

/** Both always have `waiting` actions in the queue. Seconds of all of its dominant resource that each was served. */
async function contend(
  loads: Readonly<Record<string, Load>>,
  forSeconds: number,
  weights?: ReadonlyMap<string, number>,
) {
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [Array.from({ length: 4 }, (_, i) => i)], memoryBytes: 2 ** 30 }];
  const managers = [new CpuManager({ nodes }), new QuotaManager("search", { concurrency: 2 })];
  const pool = new ActionPool({ managers, clock, tenantWeights: weights });
  const used: Record<string, number> = {};
  let isOver = false;
  const again = (tenant: string, load: Load): void => {
    if (isOver) return;
    const cost = { cpu: load.cores, ...(load.search && { search: load.search }) };
    const handle = pool.submit({ kind: "k", tenant, cost }, () => clock.sleep(load.seconds * 1000));
    handle.result.then(
      () => {
        used[tenant] = (used[tenant] ?? 0) + load.cores * load.seconds;
        again(tenant, load);
      },
      () => {},
    );
  };
  for (const [tenant, load] of Object.entries(loads)) for (let i = 0; i < 12; i++) again(tenant, load);
  await settle();
  await clock.advance(forSeconds * 1000);
  const service = Object.fromEntries(Object.keys(loads).map((tenant) => [tenant, pool.serviceOf(tenant)]));
  isOver = true;
  const closing = pool.close();
  await clock.advance(60_000);
  await closing;
  return { used, service };
}

describe("two equal tenants", () => {
  // 300 ms and 10 ms actions had 6.33 and 0.22 core-seconds when a grant was counted and its time was not.
  test.each([1, 3, 10, 30])(
    "get the same core-seconds within 5 percent when one's actions take %i times as long",
    async (ratio) => {
      const { used } = await contend(
        { long: { seconds: 0.3, cores: 1 }, short: { seconds: 0.3 / ratio, cores: 1 } },
        40,
      );
      expect(Math.abs(used.long! - used.short!) / used.short!).toBeLessThan(0.05);
    },
  );

  test("get the same also when one's actions are wide, and a weight divides what both get", async () => {
    const wide = await contend({ wide: { seconds: 0.1, cores: 3 }, thin: { seconds: 0.3, cores: 1 } }, 40);
    expect(wide.service.wide! / wide.service.thin!).toBeGreaterThan(0.9);
    expect(wide.service.wide! / wide.service.thin!).toBeLessThan(1.1);
    const loads = { heavy: { seconds: 0.05, cores: 1 }, light: { seconds: 0.2, cores: 1 } };
    const { used } = await contend(loads, 40, new Map([["heavy", 3]]));
    expect(used.heavy! / used.light!).toBeGreaterThan(2.8);
    expect(used.heavy! / used.light!).toBeLessThan(3.2);
  });

  test("are measured by what each has most of: one's quota is as much as the other's cores", async () => {
    // Half of the quota for a quarter of the cores, against cores alone.
    const loads = { quota: { seconds: 0.1, cores: 1, search: 1 }, cores: { seconds: 0.1, cores: 1 } };
    const { service } = await contend(loads, 20);
    expect(service.quota! / service.cores!).toBeGreaterThan(0.9);
    expect(service.quota! / service.cores!).toBeLessThan(1.1);
  });
});

test("a tenant sees its own kinds, and learns from its own durations", async () => {
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [[0, 1]], memoryBytes: 2 ** 30 }];
  const pool = new ActionPool({ managers: [new CpuManager({ nodes })], clock });
  const run = async (tenant: string, kind: string, ms: number) => {
    const spec = { kind, tenant, cost: { cpu: [1, 2] }, key: "cpu", elasticity: { type: "amdahl", serialShare: 0 } };
    const { result } = pool.submit(spec, () => clock.sleep(ms));
    await clock.advance(ms);
    await result;
  };
  await run("a", "tests", 1000);
  await run("b", "secret", 10);
  await run("b", "tests", 10);
  expect(pool.recentStarts()[0]!.expectedSeconds).toBeUndefined();
  await run("b", "tests", 10);
  expect(pool.recentStarts()[0]!.expectedSeconds).toBeCloseTo(0.005, 6);
  expect(Object.keys(pool.statistics("a"))).toEqual(["tests"]);
  expect(pool.statistics("b").tests).toMatchObject({ submitted: 2, longestActSeconds: 0.01 });
  expect(pool.statistics().tests).toMatchObject({ submitted: 3, longestActSeconds: 1 });
  await pool.close();
});
