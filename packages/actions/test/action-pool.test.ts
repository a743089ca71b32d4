import { TreadleError } from "@treadle/contracts";
import { ManualClock, settle } from "@treadle/contracts/testing";
import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { FairShares } from "../src/decide/fair-shares.ts";
import {
  ActionPool,
  type ActionPoolOptions,
  CpuManager,
  GpuManager,
  type Grant,
  QuotaManager,
  type ServiceInstance,
  servicePreparation,
} from "../src/index.ts";
import { FairQueue } from "../src/pool/fair-queue.ts";

const cores = (n: number, memoryBytes = 2 ** 30) => ({
  nodes: [{ id: "n0", numa: [Array.from({ length: n }, (_, i) => i)], memoryBytes }],
  trajectoryMemoryBytes: 2 ** 29,
});

function setUp(options: Partial<ActionPoolOptions> = {}, numCores = 4) {
  const clock = new ManualClock();
  const cpu = new CpuManager(cores(numCores));
  const pool = new ActionPool({ managers: [cpu], clock, ...options });
  return { clock, cpu, pool };
}
const scalable = (duration: number) => ({
  kind: "reward",
  cost: { cpu: [1, 2, 4] },
  key: "cpu",
  elasticity: { type: "amdahl", serialShare: 0 },
  duration,
});
const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => "ok",
    (e) => (e instanceof TreadleError ? e.code : e),
  );

describe("an action", () => {
  test("is told why it got what it got: what the decision saw, and where more would have gained how much", async () => {
    const { clock, pool } = setUp();
    const said: string[] = [];
    const run = async ({ why }: { why: string }) => {
      said.push(why);
      await clock.sleep(1000);
    };
    const first = pool.submit({ ...scalable(12), cost: { cpu: [1, 2, 3, 4] } }, run);
    const second = pool.submit({ kind: "unheard-of", cost: { cpu: { min: 1, max: 2 } }, key: "cpu" }, run);
    await clock.advance(3000);
    await Promise.all([first.result, second.result]);
    expect(said).toEqual([
      "3 of 1 to 4 cpu: the last saves 2 s, one more would save 1 s; unit-aware started 2 of 2 candidates, 2 waiting, 4 cpu free",
      "its elasticity is not known, so it gets the least; unit-aware started 2 of 2 candidates, 2 waiting, 4 cpu free",
    ]);
    expect(pool.recentStarts().map(({ why }) => why)).toEqual(said.toReversed());
  });

  test("queues, runs on its own cores, and reports its ACT in parts", async () => {
    const { clock, pool } = setUp();
    const seen: (readonly number[])[] = [];
    const run =
      (ms: number) =>
      async ({ allocation }: { allocation: Readonly<Record<string, Grant>> }) => {
        seen.push(allocation.cpu!.cores!);
        await clock.sleep(ms);
        return seen.length;
      };
    const first = pool.submit(scalable(10), run(1000));
    await settle();
    const second = pool.submit({ kind: "tool", cost: { cpu: 1 } }, run(500));
    await clock.advance(2000);
    expect(await Promise.all([first.result, second.result])).toEqual([1, 2]);
    expect(seen[0]).toEqual([0, 1, 2, 3]);
    expect([first.queueingSeconds, first.executionSeconds, first.allocation!.cpu!.units]).toEqual([0, 1, 4]);
    expect([second.queueingSeconds, second.overheadSeconds, second.executionSeconds]).toEqual([1, 0, 0.5]);
    expect(pool.statistics().tool).toMatchObject({
      completed: 1,
      actSeconds: 1.5,
      queueingSeconds: 1,
      executionSeconds: 0.5,
      overheadSeconds: 0,
    });
    await pool.close();
    expect(clock.armed).toBe(0);
  });

  test("submitted together with others shares the cores with them", async () => {
    const { clock, pool } = setUp();
    const half = { ...scalable(10), elasticity: { type: "amdahl", serialShare: 0.5 } };
    const handles = [1, 2].map(() => pool.submit(half, () => clock.sleep(100)));
    await settle();
    expect(handles.map((h) => h.allocation?.cpu?.units)).toEqual([2, 2]);
    await clock.advance(100);
    await pool.close();
  });

  test("learns durations by kind, and scales once it knows", async () => {
    const { clock, pool } = setUp();
    const spec = { ...scalable(0), duration: "history" };
    const units: (number | undefined)[] = [];
    for (let i = 0; i < 2; i++) {
      const handle = pool.submit(spec, () => clock.sleep(800));
      await settle();
      units.push(handle.allocation?.cpu?.units);
      await clock.advance(800);
    }
    expect(units).toEqual([1, 4]);
    await pool.close();
  });

  test("PO1 PO2 that is cancelled while it runs settles at once, and keeps its cores until it has ended", async () => {
    const { clock, cpu, pool } = setUp();
    let aborted = false;
    const handle = pool.submit({ kind: "tool", cost: { cpu: 4 } }, async ({ signal }) => {
      signal.addEventListener("abort", () => {
        aborted = true;
      });
      await clock.sleep(300);
    });
    await settle();
    handle.cancel("enough");
    await expect(handle.result).rejects.toMatchObject({ code: "action.cancelled", disposition: "cancelled" });
    expect([aborted, cpu.pools().get("cpu@n0")!.free]).toEqual([true, 0]);
    await clock.advance(300);
    expect(cpu.pools().get("cpu@n0")!.free).toBe(4);
    await pool.close();
  });

  test("PO2 its id is another's only when it has ended, so that neither gives back what the other holds", async () => {
    const { clock, cpu, pool } = setUp();
    const spec = { id: "a", kind: "tool", cost: { cpu: 1 } };
    const first = pool.submit(spec, () => clock.sleep(300));
    await settle();
    first.cancel();
    expect(await codeOf(first.result)).toBe("action.cancelled");
    expect(() => pool.submit(spec, () => clock.sleep(600))).toThrow(/'a' is in use; an id is free again when/);
    await clock.advance(300);
    const second = pool.submit(spec, () => clock.sleep(600));
    await settle();
    expect(cpu.pools().get("cpu@n0")!.free).toBe(3);
    await clock.advance(600);
    expect([await codeOf(second.result), cpu.pools().get("cpu@n0")!.free]).toEqual(["ok", 4]);
    await pool.close();
  });

  test("that waits can be cancelled and frees its place", async () => {
    const { clock, pool } = setUp();
    const running = pool.submit({ kind: "tool", cost: { cpu: 4 } }, () => clock.sleep(100));
    const waiting = pool.submit({ kind: "tool", cost: { cpu: 4 } }, () => clock.sleep(100));
    await settle();
    waiting.cancel();
    expect(await codeOf(waiting.result)).toBe("action.cancelled");
    await clock.advance(100);
    expect(await codeOf(running.result)).toBe("ok");
    expect(pool.statistics().tool).toMatchObject({ submitted: 2, completed: 1, cancelled: 1 });
    await pool.close();
  });

  test("outlives its deadline waiting or running", async () => {
    const { clock, pool } = setUp();
    const running = pool.submit({ kind: "tool", cost: { cpu: 4 }, deadlineMs: 50 }, () => clock.sleep(100));
    const waiting = pool.submit({ kind: "tool", cost: { cpu: 4 }, deadlineMs: 60 }, () => clock.sleep(100));
    await clock.advance(70);
    expect([await codeOf(running.result), await codeOf(waiting.result)]).toEqual([
      "action.deadline",
      "action.deadline",
    ]);
    await clock.advance(100);
    await pool.close();
  });

  test("is tried again after a retryable failure only, in its old place, with a growing wait", async () => {
    const { clock, pool } = setUp();
    const attempts: number[] = [];
    const flaky =
      (code: "sandbox.failed" | "action.failed") =>
      async ({ attempt }: { attempt: number }) => {
        attempts.push(clock.now());
        if (attempt < 2) throw new TreadleError(code, "no");
        return attempt;
      };
    const spec = { kind: "tool", cost: { cpu: 1 }, retries: { limit: 3, backoffMs: 100 } };
    const handle = pool.submit(spec, flaky("sandbox.failed"));
    await clock.advance(1000);
    expect(await handle.result).toBe(2);
    expect(attempts).toEqual([0, 100, 300]);
    expect(await codeOf(pool.submit(spec, flaky("action.failed")).result)).toBe("action.failed");
    const plain = pool.submit(spec, async () => {
      throw new Error("boom");
    });
    await expect(plain.result).rejects.toMatchObject({ code: "action.failed", cause: { message: "boom" } });
    await pool.close();
  });

  test.each([
    [{ kind: "tool", cost: { cpu: 5 } }, "action.impossible", /'5' units of 'cpu'.*can get 4/],
    [{ kind: "tool", cost: { gpu: 1 } }, "action.impossible", /'gpu' is not managed; managed are 'cpu'/],
    [{ kind: "tool", cost: { cpu: -1 } }, "action.invalid", /cost\.cpu/],
    [{ cost: {} }, "action.invalid", /kind/],
  ])("%j is refused at once", (spec, code, message) => {
    const { pool } = setUp();
    expect(() => pool.submit(spec, async () => 0)).toThrow(
      expect.objectContaining({ code, message: expect.stringMatching(message) }),
    );
  });
});

describe("order", () => {
  const order = async (specs: object[], options: Partial<ActionPoolOptions> = {}): Promise<string[]> => {
    const { clock, pool } = setUp(options, 1);
    const started: string[] = [];
    pool.submit({ kind: "block", cost: { cpu: 1 } }, () => clock.sleep(10));
    await settle();
    for (const spec of specs)
      pool.submit({ kind: "tool", cost: { cpu: 1 }, ...spec }, async ({ id }) => {
        started.push(id);
        await clock.sleep(10);
      });
    await clock.advance(10_000);
    await pool.close();
    return started;
  };

  test("first come, first served, except for priority", async () => {
    expect(await order([{ id: "a" }, { id: "b" }, { id: "c", priority: 1 }])).toEqual(["c", "a", "b"]);
  });

  test("FQ1 within a tenant they are in the order of their ranks, equal ones as they came, whoever is served between", () => {
    const entry = fc.record({
      tenant: fc.constantFrom("a", "b", "c"),
      rank: fc.nat(4),
      demand: fc.double({ min: 0, max: 9, noNaN: true }),
      isRemoved: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(entry, { maxLength: 30 }), fc.nat(30), (entries, limit) => {
        const queue = new FairQueue<(typeof entries)[number]>(new FairShares(new Map([["cpu", 4]])));
        for (const each of entries) queue.add(each, 0);
        for (const each of entries) if (each.isRemoved) expect(queue.remove(each, 0)).toBe(true);
        const stays = entries.filter(({ isRemoved }) => !isRemoved);
        const ordered = queue.order(limit, 0);
        expect(ordered).toHaveLength(Math.min(limit, stays.length));
        for (const name of ["a", "b", "c"]) {
          const own = stays.filter(({ tenant }) => tenant === name).toSorted((x, y) => x.rank - y.rank);
          const served = ordered.filter(({ tenant }) => tenant === name);
          expect(served.every((each, i) => each === own[i])).toBe(true);
        }
      }),
    );
  });

  test("FQ2 a tenant with two actions is not behind another's twenty", async () => {
    const many = Array.from({ length: 20 }, (_, i) => ({ id: `many${i}`, tenant: "many" }));
    const started = await order([...many, { id: "few0", tenant: "few" }, { id: "few1", tenant: "few" }]);
    expect(started.indexOf("few1")).toBeLessThan(4);
    expect(started.filter((id) => id.startsWith("many"))).toEqual(many.map((m) => m.id));
  });

  test("FQ2 weights divide what is served", async () => {
    const of = (tenant: string) => Array.from({ length: 12 }, (_, i) => ({ id: `${tenant}${i}`, tenant }));
    const started = await order([...of("x"), ...of("y")], { tenantWeights: new Map([["x", 3]]) });
    expect(started.slice(0, 12).filter((id) => id.startsWith("x")).length).toBeGreaterThanOrEqual(8);
    expect(started.slice(0, 12).filter((id) => id.startsWith("y")).length).toBeGreaterThanOrEqual(2);
  });
});

describe("a trajectory", () => {
  test("reserves memory from its first action to its end, and others wait for it", async () => {
    const { clock, cpu, pool } = setUp();
    const run = (trajectory: string) =>
      pool.submit({ kind: "tool", cost: { cpu: 1 }, trajectory }, () => clock.sleep(10));
    const handles = ["t1", "t2", "t3"].map(run);
    await clock.advance(50);
    expect(handles.map((h) => h.executionSeconds)).toEqual([0.01, 0.01, undefined]);
    await pool.closeTrajectory("t1");
    await clock.advance(50);
    expect([cpu.home("t3"), handles[2]!.executionSeconds]).toEqual(["cpu@n0", 0.01]);
    await pool.close();
  });

  test("PO4 after the pool has closed nothing runs, no timer is armed, and managers were told of every end", async () => {
    const { clock, cpu, pool } = setUp();
    const ended: string[] = [];
    const told = vi.spyOn(cpu, "endTrajectory");
    let numRunning = 0;
    const run = async () => {
      numRunning++;
      await clock.sleep(300);
      numRunning--;
      throw new TreadleError("sandbox.failed", "try again");
    };
    const retries = { limit: 5, backoffMs: 1000 };
    for (const trajectory of ["running", "retrying", "idle"])
      pool.openTrajectory(trajectory, { onClose: () => void ended.push(trajectory) });
    const submit = (trajectory: string, units: number) =>
      pool.submit({ kind: "tool", cost: { cpu: units }, trajectory, deadlineMs: 60_000, retries }, run);
    const handles = [submit("retrying", 4)];
    await clock.advance(310); // it waits for its next attempt
    handles.push(submit("running", 4), submit("running", 4));
    await clock.advance(10);
    expect([numRunning, clock.armed > 0]).toEqual([1, true]);
    const closing = pool.close();
    await clock.advance(300);
    await closing;
    expect([numRunning, clock.armed]).toEqual([0, 0]);
    expect(await Promise.all(handles.map(({ result }) => codeOf(result)))).toEqual(Array(3).fill("action.cancelled"));
    expect(ended.toSorted()).toEqual(["idle", "retrying", "running"]);
    expect(told.mock.calls.flat().toSorted()).toEqual(["idle", "retrying", "running"]);
  });

  test("cancels its actions when it closes and then runs its end", async () => {
    const { clock, pool } = setUp();
    const events: string[] = [];
    pool.openTrajectory("t", { onClose: () => void events.push("closed") });
    const handle = pool.submit({ kind: "tool", cost: { cpu: 1 }, trajectory: "t" }, async () => {
      await clock.sleep(20);
      events.push("ended");
    });
    await settle();
    const closing = pool.closeTrajectory("t");
    await clock.advance(20);
    await closing;
    expect([events, await codeOf(handle.result)]).toEqual([["ended", "closed"], "action.cancelled"]);
    await pool.close();
  });
});

describe("resources other than cores", () => {
  test("a quota is met over time, and a refusal stops further calls", async () => {
    const clock = new ManualClock();
    const search = new QuotaManager("search", {
      concurrency: 4,
      windows: [{ type: "sliding", limit: 2, periodMs: 1000 }],
    });
    const pool = new ActionPool({ managers: [search], clock });
    const starts: number[] = [];
    const call = () =>
      pool.submit(
        { kind: "search", cost: { search: 1 }, retries: { limit: 1, backoffMs: 0 } },
        async ({ attempt, throttled }) => {
          starts.push(clock.now());
          if (starts.length === 5 && attempt === 0) {
            throttled("search", 3000);
            throw new TreadleError("sandbox.failed", "429");
          }
        },
      );
    const results = [1, 2, 3, 4, 5, 6].map(() => call().result);
    await clock.advance(20_000);
    await Promise.all(results);
    expect(starts.slice(0, 4)).toEqual([0, 0, 1000, 1000]);
    expect(Math.min(...starts.slice(6))).toBeGreaterThanOrEqual(5000);
    await pool.close();
    expect(clock.armed).toBe(0);
  });

  test("GP3 a GPU service is restored once its memory was seen free, which counts as overhead", async () => {
    const clock = new ManualClock();
    const gpu = new GpuManager({
      nodes: 1,
      devicesPerNode: 2,
      memoryBytesPerDevice: 100,
      services: {
        judge: [{ dop: 2, memoryBytes: 80, restoreSeconds: 1 }],
        teacher: [{ dop: 2, memoryBytes: 80, restoreSeconds: 1 }],
      },
    });
    const log: string[] = [];
    let used = 0;
    const host = {
      async evict(instance: ServiceInstance) {
        log.push(`evict ${instance.service}`);
        clock.after(50, () => {
          used = 0;
        });
        return "ended" as const;
      },
      async restore(instance: ServiceInstance) {
        log.push(`restore ${instance.service} with ${used} used`);
        await clock.sleep(1000);
        used = 80;
        return "started" as const;
      },
      freeBytes: async () => [100 - used, 100 - used],
    };
    const pool = new ActionPool({ managers: [gpu], clock, prepare: servicePreparation(gpu, host, clock) });
    const run = (service: string) => pool.submit({ kind: service, cost: { gpu: 2 }, service }, () => clock.sleep(200));
    const handles = ["judge", "judge", "teacher"].map(run);
    await clock.advance(5000);
    await Promise.all(handles.map((h) => h.result));
    expect(log).toEqual(["restore judge with 0 used", "evict judge", "restore teacher with 0 used"]);
    expect(handles.map((h) => h.overheadSeconds! >= 1)).toEqual([true, false, true]);
    expect(handles.map((h) => h.executionSeconds)).toEqual([0.2, 0.2, 0.2]);
    await pool.close();
  });

  test("GP5 a restore is expected to last what one has, a wake what a wake has, and a failed one teaches nothing", async () => {
    const clock = new ManualClock();
    const variants = [{ dop: 1, memoryBytes: 80, restoreSeconds: 9 }];
    const services = { judge: variants, coach: variants };
    const gpu = new GpuManager({ nodes: 1, devicesPerNode: 1, memoryBytesPerDevice: 100, services });
    const ways = new Map<string, "started" | "woken" | "fails">();
    const host = {
      evict: async () => "asleep" as const,
      async restore({ service }: ServiceInstance) {
        const way = ways.get(service) ?? "started";
        await clock.sleep(way === "woken" ? 500 : 4000);
        if (way === "fails") throw new TreadleError("service.failed", "it did not answer");
        return way;
      },
      freeBytes: async () => [100],
    };
    const pool = new ActionPool({ managers: [gpu], clock, prepare: servicePreparation(gpu, host, clock) });
    const run = async (service: string, way: "started" | "woken" | "fails"): Promise<void> => {
      ways.set(service, way);
      const handle = pool.submit({ kind: service, cost: { gpu: 1 }, service }, async () => {});
      await clock.advance(5000);
      await handle.result.catch(() => {});
    };
    await run("judge", "fails");
    expect(gpu.restoreSeconds("judge", 1)).toBe(9);
    await run("judge", "started");
    await run("coach", "started");
    // No wake was seen yet.
    expect(gpu.restoreSeconds("judge", 1)).toBe(4);
    await run("judge", "woken");
    await run("coach", "woken");
    expect(gpu.restoreSeconds("judge", 1)).toBe(0.5);
    expect(gpu.restoreCosts()).toMatchObject([
      { service: "judge", dop: 1, startSeconds: 4, wakeSeconds: 0.5 },
      { service: "coach", dop: 1, startSeconds: 4, wakeSeconds: 0.5 },
    ]);
    await pool.close();
  });

  test("what was evicted is restored again, though the free memory could not be measured then", async () => {
    const clock = new ManualClock();
    const variants = [{ dop: 1, memoryBytes: 80 }];
    const services = { judge: variants, coach: variants };
    const gpu = new GpuManager({ nodes: 1, devicesPerNode: 1, memoryBytesPerDevice: 100, services });
    const restored: string[] = [];
    let isMeasured = true;
    const host = {
      evict: async () => "ended" as const,
      async restore({ service }: ServiceInstance) {
        restored.push(service);
        return "started" as const;
      },
      async freeBytes() {
        if (!isMeasured) throw new TreadleError("service.failed", "no nvidia-smi");
        return [100];
      },
    };
    const pool = new ActionPool({ managers: [gpu], clock, prepare: servicePreparation(gpu, host, clock) });
    const run = (service: string) => pool.submit({ kind: service, cost: { gpu: 1 }, service }, async () => {}).result;
    await run("judge");
    isMeasured = false;
    expect(await codeOf(run("coach"))).toBe("service.failed");
    isMeasured = true;
    await run("judge");
    expect(restored).toEqual(["judge", "judge"]);
    await pool.close();
  });

  test("memory that never comes back fails the action by name", async () => {
    const clock = new ManualClock();
    const gpu = new GpuManager({
      nodes: 1,
      devicesPerNode: 1,
      memoryBytesPerDevice: 100,
      services: { judge: [{ dop: 1, memoryBytes: 80, restoreSeconds: 1 }] },
    });
    const host = {
      evict: async () => "ended" as const,
      restore: async () => "started" as const,
      freeBytes: async () => [10],
    };
    const pool = new ActionPool({
      managers: [gpu],
      clock,
      prepare: servicePreparation(gpu, host, clock, { timeoutMs: 100 }),
    });
    const handle = pool.submit({ kind: "judge", cost: { gpu: 1 }, service: "judge" }, async () => "ran");
    await clock.advance(1000);
    expect(await codeOf(handle.result)).toBe("device.memory-not-freed");
    expect(gpu.pools().get("gpu")!.free).toBe(1);
    await pool.close();
  });
});
