import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { ManualClock, settle } from "@treadle/contracts/testing";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ActionPool, CpuManager, type Grant, QuotaManager } from "../src/index.ts";

const numCores = 8;
const poolOf = (clock: ManualClock) => {
  const nodes = [{ id: "n", numa: [Array.from({ length: numCores }, (_, i) => i)], memoryBytes: 2 ** 30 }];
  return new ActionPool({ managers: [new CpuManager({ nodes })], clock });
};

/** How many random loads: ten seconds of processor time; `TREADLE_LOADS` says another number. */
const numLoads = Number(process.env.TREADLE_LOADS ?? 10_000);

describe("PL4 the bound on a start", () => {
  test("holds behind one that takes sixty times as long as was thought", async () => {
    const clock = new ManualClock();
    const pool = poolOf(clock);
    const spec = (duration: number) => ({
      kind: "k",
      cost: { cpu: [1, 4, 8] },
      key: "cpu",
      elasticity: { type: "amdahl", serialShare: 0 },
      duration,
    });
    const late = pool.submit({ ...spec(0.4), cost: { cpu: [4] } }, () => clock.sleep(6000));
    await settle();
    const waiting = pool.submit(spec(1), () => clock.sleep(100));
    await clock.advance(1001);
    expect(waiting.queueingSeconds).toBeLessThanOrEqual(1);
    await clock.advance(10_000);
    await Promise.all([late.result, waiting.result]);
    await pool.close();
    expect(clock.armed).toBe(0);
  });

  test(`holds in ${numLoads} random loads with wrong estimates, where every action starts (PO3)`, async () => {
    const action = fc.record({
      atMs: fc.integer({ min: 0, max: 3000 }),
      units: fc.uniqueArray(fc.integer({ min: 1, max: numCores }), { minLength: 1, maxLength: 4 }),
      saidMs: fc.integer({ min: 10, max: 2000 }),
      // By a factor of up to thirty, either way.
      wrongBy: fc.double({ min: -1.5, max: 1.5, noNaN: true }),
      serialShare: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(action, { minLength: 2, maxLength: 8 }), async (load) => {
        const clock = new ManualClock();
        const pool = poolOf(clock);
        const sorted = [...load].sort((a, b) => a.atMs - b.atMs);
        let free = numCores;
        const held = new Map<number, number>();
        const waiting = new Map<
          number,
          { readonly least: number; readonly boundMs: number; readonly sinceMs: number }
        >();
        const results: Promise<unknown>[] = [];
        const startable = (): void => {
          // First come, first served: only the first that waits is nobody else's turn.
          const [first] = waiting.values();
          if (first === undefined || first.least > free) return;
          expect(clock.now() - first.sinceMs).toBeLessThanOrEqual(first.boundMs + 1);
        };
        for (const [i, { atMs, units, saidMs, wrongBy, serialShare }] of sorted.entries()) {
          while (clock.now() < atMs) {
            await clock.advance(Math.min(50, atMs - clock.now()));
            startable();
          }
          const least = Math.min(...units);
          const at = (count: number): number => saidMs * (serialShare + (1 - serialShare) / count);
          waiting.set(i, { least, boundMs: at(least), sinceMs: clock.now() });
          const run = async ({ allocation }: { allocation: Readonly<Record<string, Grant>> }) => {
            const { units: given } = allocation.cpu!;
            waiting.delete(i);
            free -= given;
            held.set(i, given);
            await clock.sleep(at(given) * 10 ** wrongBy);
            free += given;
          };
          const elasticity = { type: "amdahl", serialShare };
          const spec = { kind: "k", cost: { cpu: units }, key: "cpu", elasticity, duration: saidMs / 1000 };
          results.push(pool.submit(spec, run).result);
          await settle();
        }
        for (let step = 0; waiting.size > 0 && step < 20_000; step++) {
          await clock.advance(50);
          startable();
        }
        await clock.advance(100_000);
        await Promise.all(results);
        await pool.close();
      }),
      { numRuns: numLoads },
    );
  });
});

describe("what can never start", () => {
  const nodes = [
    { id: "small", numa: [[0, 1]], memoryBytes: 1000 },
    { id: "wide", numa: [[0, 1, 2, 3, 4, 5]], memoryBytes: 400 },
  ];
  const setUp = () => {
    const clock = new ManualClock();
    return { clock, pool: new ActionPool({ managers: [new CpuManager({ nodes, trajectoryMemoryBytes: 10 })], clock }) };
  };

  test("is refused at once: a trajectory that reserves more than any node has, and others go on", async () => {
    const { pool } = setUp();
    expect(() => pool.openTrajectory("huge", { memoryBytes: 2000 })).toThrow(
      expect.objectContaining({
        code: "action.impossible",
        message: expect.stringMatching(/2000 bytes .* a node has 1000/),
      }),
    );
    const other = pool.submit({ kind: "k", cost: { cpu: 1 }, trajectory: "other" }, async () => 1);
    expect(await other.result).toBe(1);
    await pool.close();
  });

  test("is refused at once: an action wider than the nodes that have its trajectory's memory, or than the one it is on", async () => {
    const { pool } = setUp();
    pool.openTrajectory("large", { memoryBytes: 800 });
    const wide = { kind: "k", cost: { cpu: 4 }, trajectory: "large" };
    expect(() => pool.submit(wide, async () => 0)).toThrow(
      /needs 4 of 'cpu'.*needs 800 bytes, and there are 2 at most/,
    );
    // It takes some memory of the wide node, so that the next goes to the other.
    await pool.submit({ kind: "k", cost: { cpu: 1 }, trajectory: "before" }, async () => 0).result;
    const tied = pool.submit({ kind: "k", cost: { cpu: 1 }, trajectory: "t" }, async () => 1);
    // Whether this fits is known only when the one before has taken their trajectory to a node.
    const behind = pool.submit({ kind: "k", cost: { cpu: 5 }, trajectory: "t" }, async () => 2);
    const others = pool.submit({ kind: "k", cost: { cpu: 1 } }, async () => 3);
    expect(await tied.result).toBe(1);
    expect(await others.result).toBe(3);
    await expect(behind.result).rejects.toMatchObject({ code: "action.impossible" });
    await pool.close();
  });
});

test("units that time frees while the pool decides are seen by somebody: a wake is never lost", async () => {
  for (let creepMs = 1; creepMs <= 40; creepMs++) {
    // Time passes with every look at the clock, as it does on a busy machine.
    const timers = new Set<{ readonly atMs: number; readonly act: () => void }>();
    let nowMs = 0;
    const now = () => (nowMs += creepMs);
    const after = (ms: number, act: () => void) => {
      const timer = { atMs: nowMs + ms, act };
      timers.add(timer);
      return () => timers.delete(timer);
    };
    const search = new QuotaManager("search", { windows: [{ type: "bucket", limit: 1, burst: 1, periodMs: 150 }] });
    const pool = new ActionPool({ managers: [search], clock: { now, after } as never });
    let done = 0;
    for (let i = 0; i < 3; i++)
      void pool.submit({ kind: "k", cost: { search: 1 } }, async () => 0).result.then(() => done++);
    for (;;) {
      await new Promise((resolve) => setImmediate(resolve));
      const [next] = [...timers].sort((a, b) => a.atMs - b.atMs);
      if (next === undefined) break;
      timers.delete(next);
      nowMs = Math.max(nowMs, next.atMs);
      next.act();
    }
    expect(done, `${creepMs} ms a look`).toBe(3);
  }
});

test("a process that waits for a retry, or for a quota, does not end before", async () => {
  const program = fileURLToPath(new URL("support/waits-for-retries.ts", import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, ["--import", "tsx", "--conditions=source", program]);
  expect(stdout.trim()).toBe("third attempt, after a quota");
});
