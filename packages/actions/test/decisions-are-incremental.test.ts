import { ManualClock, settle } from "@treadle/contracts/testing";
import fc from "fast-check";
import { afterEach, expect, test, vi } from "vitest";
import {
  type ActionContext,
  type ActionHandle,
  ActionPool,
  CpuManager,
  GpuManager,
  QuotaManager,
} from "../src/index.ts";
import type { ActionRecord } from "../src/pool/action-record.ts";
import { PoolBinding } from "../src/pool/pool-binding.ts";

afterEach(() => {
  vi.restoreAllMocks();
});

/** A stream of fast-check would keep all that it drew. */
function drawsFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

const amdahl = (serialShare: number) => ({ type: "amdahl", serialShare });
const kinds = [
  () => ({ kind: "tool", cost: { cpu: 1 } }),
  (below: (n: number) => number) => ({ kind: "search", cost: { search: 1 + below(2) } }),
  () => ({ kind: "judge", cost: { gpu: [1, 2] }, key: "gpu", service: "judge", elasticity: amdahl(0.1) }),
  (below: (n: number) => number) => ({
    kind: `suite${below(2)}`,
    cost: { cpu: { min: 1, max: 8 } },
    key: "cpu",
    elasticity: amdahl(0.05),
    duration: 4 + below(3),
  }),
  () => ({
    kind: "build",
    cost: { cpu: [1, 2, 4], search: 1 },
    key: "cpu",
    elasticity: { type: "power", exponent: 0.7 },
  }),
  () => ({ kind: "both", cost: { search: 1, cpu: 2 } }),
];

/** What a pool does over a random history: every grant with its reason, and every end. */
async function historyOf(seed: number): Promise<string[]> {
  const below = drawsFrom(seed);
  const clock = new ManualClock();
  const node = (n: number, cores: number) => ({
    id: `n${n}`,
    numa: [Array.from({ length: cores }, (_, i) => i)],
    memoryBytes: 2 ** 20 * (4 + below(5)),
  });
  const numNodes = 1 + below(3);
  const nodes = Array.from({ length: numNodes }, (_, n) => node(n, 2 + below(7)));
  const cpu = new CpuManager({ nodes, trajectoryMemoryBytes: 2 ** 20 });
  const windows = below(2) === 0 ? [] : [{ type: "sliding" as const, limit: 5, periodMs: 3000 }];
  const search = new QuotaManager("search", { concurrency: 2 + below(3), windows });
  const judge = [
    { dop: 1, memoryBytes: 60, restoreSeconds: 2 },
    { dop: 2, memoryBytes: 40, restoreSeconds: 1 },
  ];
  const other = [{ dop: 2, memoryBytes: 90, restoreSeconds: 3 }];
  const gpu = new GpuManager({ nodes: 1, devicesPerNode: 4, memoryBytesPerDevice: 100, services: { judge, other } });
  const pool = new ActionPool({ managers: [cpu, search, gpu], clock, tenantWeights: new Map([["t1", 2]]) });
  const log: string[] = [];
  const handles: ActionHandle<void>[] = [];
  const submit = (id: string): void => {
    const own = kinds[below(kinds.length)]!(below);
    const spec = {
      ...own,
      id,
      tenant: `t${below(3)}`,
      priority: below(8) === 0 ? 1 : 0,
      trajectory: below(3) === 0 ? undefined : `trajectory-${below(5)}`,
      deadlineMs: below(12) === 0 ? 5000 : undefined,
    };
    const ms = 1000 + below(5000);
    const run = async ({ allocation, why }: ActionContext): Promise<void> => {
      const grants = Object.values(allocation).map(({ pool, units, cores, devices }) => [pool, units, cores, devices]);
      log.push(`${clock.now()} ${id} ${JSON.stringify(grants)} ${why}`);
      // As none of their curves says, so that these are learned again.
      await clock.sleep(ms * (0.6 + 0.4 / (allocation.cpu?.units ?? 1)));
    };
    try {
      const handle = pool.submit(spec, run);
      const ended = (how: string) => log.push(`${clock.now()} ${id} ${how}`);
      handle.result.then(
        () => ended("ok"),
        (error: Error) => ended(error.message),
      );
      handles.push(handle);
    } catch (error) {
      log.push(`${id} ${(error as Error).message}`);
    }
  };
  for (let step = 0; step < 60; step++) {
    const what = below(12);
    if (what < 7) for (let more = below(6); more >= 0; more--) submit(`a${handles.length}-${step}-${more}`);
    else if (what === 7 && handles.length > 0) handles[below(handles.length)]!.cancel();
    else if (what === 8) void pool.closeTrajectory(`trajectory-${below(5)}`);
    else if (what === 9 && below(2) === 0) {
      const n = below(numNodes);
      if (below(2) === 0) cpu.leave(`n${n}`);
      else cpu.join(node(n, 1 + below(8)));
      pool.changed();
    } else await clock.advance(below(2500));
    await settle();
  }
  for (let i = 0; i < 20; i++) await clock.advance(2000);
  log.push(JSON.stringify([pool.usage(), [...pool.charged()], pool.statistics()]));
  return log;
}

test("PB1 what is as at the last decision is not made again, and is decided as if it were", async () => {
  const see = PoolBinding.prototype.see;
  const spy = vi.spyOn(PoolBinding.prototype, "see");
  let numStarts = 0;
  let numKept = 0;
  await fc.assert(
    fc.asyncProperty(fc.integer(), async (seed) => {
      spy.mockImplementation(function (this: PoolBinding, records: readonly ActionRecord[], nowMs: number) {
        const before = records.map(({ bound }) => bound);
        const sight = see.call(this, records, nowMs);
        records.forEach(({ bound }, i) => {
          if (bound !== undefined && bound === before[i]) numKept++;
        });
        return sight;
      });
      const incremental = await historyOf(seed);
      spy.mockImplementation(function (this: PoolBinding, records: readonly ActionRecord[], nowMs: number) {
        for (const record of records) {
          record.bound = undefined;
          record.alike.isStale = true;
        }
        return see.call(this, records, nowMs);
      });
      expect(await historyOf(seed)).toEqual(incremental);
      numStarts += incremental.filter((line) => line.includes(" waiting, ")).length;
    }),
    { numRuns: 10 },
  );
  expect(numStarts).toBeGreaterThan(300);
  expect(numKept).toBeGreaterThan(numStarts);
});
