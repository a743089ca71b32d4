import { ManualClock, settle } from "@treadle/contracts/testing";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { FairShares } from "../src/decide/fair-shares.ts";
import { ActionPool, CpuManager, GpuManager, QuotaManager } from "../src/index.ts";

const capacities = new Map([
  ["cpu", 8],
  ["search", 2],
]);

describe("shares", () => {
  test("FS1 what is held of a resource that grows or shrinks is another part of it from then on", () => {
    const shares = new FairShares(new Map([["cpu", 1]]));
    shares.change("t", "cpu", 1, 0);
    shares.resize("cpu", 100, 1000);
    expect(shares.serviceOf("t", 2000)).toBeCloseTo(1.01, 9);
    shares.resize("cpu", 4, 2000);
    expect(shares.serviceOf("t", 3000)).toBeCloseTo(1.26, 9);
    shares.change("t", "cpu", -1, 3000);
    expect(shares.serviceOf("t", 9000)).toBeCloseTo(1.26, 9);
    expect(shares.shareOf([["cpu", 1]])).toBe(0.25);
  });

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
        for (const [i, count] of units.entries()) {
          shares.begins("action", { tenant: `t${i}`, share: 0, expectedSeconds: 0 }, 0);
          shares.change(`t${i}`, "cpu", count, 0);
        }
        shares.waits("late", 1, 10_000);
        expect(shares.levelOf("late", 10_000)).toBeCloseTo((Math.min(...units) / 8) * 10, 9);
      }),
    );
  });
});

test("FS2 a trajectory that is kept open saves nothing up", () => {
  const shares = new FairShares(capacities);
  shares.hold("idle", "memory", 0.001, 0);
  shares.begins("action", { tenant: "busy", share: 1, expectedSeconds: 0 }, 0);
  shares.change("busy", "cpu", 8, 0);
  shares.waits("idle", 1, 3_600_000);
  expect(shares.serviceOf("idle", 3_600_000)).toBeCloseTo(3600, 9);
});

test("FS2 what one was served while it was alone is no debt to those who come when it is away", () => {
  const shares = new FairShares(capacities);
  const runs = (tenant: string, fromMs: number, untilMs: number): void => {
    shares.waits(tenant, 1, fromMs);
    shares.waits(tenant, -1, fromMs);
    shares.change(tenant, "cpu", 8, fromMs);
    shares.change(tenant, "cpu", -8, untilMs);
  };
  runs("first", 0, 3_600_000);
  runs("second", 3_600_000, 3_601_000);
  for (const tenant of ["first", "second"]) shares.waits(tenant, 1, 3_601_000);
  const debt = shares.serviceOf("first", 3_601_000) - shares.serviceOf("second", 3_601_000);
  expect(Math.abs(debt)).toBeLessThanOrEqual(1);
});

test("FS1 a part of a rate is held for the rate's period, however short the call was", () => {
  const shares = new FairShares(capacities);
  shares.spend("t", "rate", 0.25, 60_000, 0);
  expect(shares.levelOf("t", 0)).toBeCloseTo(15, 9);
  shares.spend("t", "rate", 0.25, 30_000, 0);
  expect(shares.serviceOf("t", 10_000)).toBeCloseTo(5, 9);
  expect(shares.serviceOf("t", 600_000)).toBeCloseTo(0.5 * 30 + 0.25 * 30, 9);
  expect(shares.levelOf("t", 600_000)).toBeCloseTo(22.5, 9);
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

/** What two tenants contend for, each with amounts of its own. `whole` of them exist; `forSeconds`, where it is a rate. */
const contended = {
  cores: { whole: 4, amounts: [0.5, 1, 1.5, 2], cost: (amount: number) => ({ cpu: amount }), held: Math.ceil },
  memory: { whole: 8, amounts: [1, 2, 3], cost: () => ({}) },
  calls: { whole: 4, amounts: [0.5, 1, 2], cost: (amount: number) => ({ search: amount }) },
  rate: { whole: 10, amounts: [0.5, 1, 2], cost: (amount: number) => ({ api: amount }), forSeconds: 5 },
  bucket: { whole: 10, amounts: [0.25, 1, 2], cost: (amount: number) => ({ tokens: amount }), forSeconds: 5 },
  devices: { whole: 8, amounts: [0.5, 1, 2], cost: (amount: number) => ({ gpu: amount }), held: Math.ceil },
  intervals: {
    whole: 8,
    amounts: [2, 3],
    cost: (amount: number) => ({ gpu: amount }),
    held: (n: number) => (n === 3 ? 4 : n),
  },
} as const;

/** Share-seconds of what both contend for, as what they were given says, not what the pool thinks. */
async function shareOut(
  what: keyof typeof contended,
  loads: Readonly<Record<string, { readonly amount: number; readonly seconds: number }>>,
  forSeconds: number,
) {
  const contest: { whole: number; cost(amount: number): object; held?(n: number): number; forSeconds?: number } =
    contended[what];
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [[0, 1, 2, 3]], memoryBytes: 8 * 2 ** 20 }];
  const managers = [
    new CpuManager({ nodes }),
    new QuotaManager("search", { concurrency: 4 }),
    new QuotaManager("api", { windows: [{ type: "sliding", limit: 10, periodMs: 5000 }] }),
    new QuotaManager("tokens", { windows: [{ type: "bucket", limit: 10, periodMs: 5000, burst: 4 }] }),
    new GpuManager({ nodes: 1, devicesPerNode: 8, memoryBytesPerDevice: 1, services: {} }),
  ];
  const pool = new ActionPool({ managers, clock });
  const used = new Map(Object.keys(loads).map((tenant) => [tenant, 0]));
  let made = 0;
  let isOver = false;
  const again = (tenant: string): void => {
    if (isOver) return;
    const { amount, seconds } = loads[tenant]!;
    const trajectory = `${tenant}/${made++}`;
    if (what === "memory") pool.openTrajectory(trajectory, { tenant, memoryBytes: amount * 2 ** 20 });
    const spec = { kind: "k", tenant, cost: contest.cost(amount), ...(what === "memory" && { trajectory }) };
    const { result } = pool.submit(spec, async () => {
      const share = (contest.held?.(amount) ?? amount) / contest.whole;
      used.set(tenant, used.get(tenant)! + share * (contest.forSeconds ?? seconds));
      await clock.sleep(seconds * 1000);
    });
    const next = async (): Promise<void> => {
      if (what === "memory") await pool.closeTrajectory(trajectory);
      again(tenant);
    };
    result.then(next, () => {});
  };
  // More than ever run at once, so that both always wait.
  const outstanding = contest.forSeconds === undefined ? 20 : 60;
  for (const tenant of Object.keys(loads)) for (let i = 0; i < outstanding; i++) again(tenant);
  await settle();
  await clock.advance(forSeconds * 1000);
  isOver = true;
  const closing = pool.close();
  await clock.advance(60_000);
  await closing;
  return [...used.values()] as [number, number];
}

describe.each(Object.keys(contended) as (keyof typeof contended)[])("two equal tenants that contend for %s", (what) => {
  test("end within 5 %% of each other, whatever they ask for at once and for how long", async () => {
    const amount = fc.constantFrom(...contended[what].amounts);
    await fc.assert(
      fc.asyncProperty(amount, amount, fc.integer({ min: 1, max: 30 }), async (long, short, ratio) => {
        const loads = { long: { amount: long, seconds: 0.2 * ratio }, short: { amount: short, seconds: 0.2 } };
        const [a, b] = await shareOut(what, loads, 30 + 8 * ratio);
        expect(Math.abs(a - b) / Math.max(a, b), `${a} and ${b}`).toBeLessThan(0.05);
      }),
      { numRuns: 3, examples: [[contended[what].amounts[0], contended[what].amounts.at(-1)!, 30]] },
    );
  });
});

test("FQ2 of what two tenants submit at once, each gets half in the first decision", async () => {
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [[0, 1, 2, 3]], memoryBytes: 2 ** 30 }];
  const pool = new ActionPool({ managers: [new CpuManager({ nodes })], clock });
  for (const tenant of ["a", "b"])
    for (let i = 0; i < 8; i++) pool.submit({ kind: "k", tenant, cost: { cpu: 1 } }, () => clock.sleep(1000));
  await settle();
  expect(pool.tenants()).toEqual({ a: { waiting: 6, running: 2 }, b: { waiting: 6, running: 2 } });
  const closing = pool.close();
  await clock.advance(2000);
  await closing;
});

test("a part of a core is a core, and a part of a call is a part of a call", async () => {
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [[0, 1]], memoryBytes: 2 ** 30 }];
  const pool = new ActionPool({
    managers: [new CpuManager({ nodes }), new QuotaManager("search", { concurrency: 1 })],
    clock,
  });
  const run = (cost: object) => pool.submit({ kind: "k", cost }, () => clock.sleep(1000));
  const cores = [run({ cpu: 0.5 }), run({ cpu: 0.5 }), run({ cpu: 0.5 })];
  const calls = [run({ search: 0.5 }), run({ search: 0.25 }), run({ search: 0.25 }), run({ search: 0.25 })];
  await settle();
  expect(cores.map(({ allocation }) => allocation?.cpu?.units)).toEqual([1, 1, undefined]);
  expect(calls.map(({ allocation }) => allocation?.search?.units)).toEqual([0.5, 0.25, 0.25, undefined]);
  const closing = pool.close();
  await clock.advance(2000);
  await closing;
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
