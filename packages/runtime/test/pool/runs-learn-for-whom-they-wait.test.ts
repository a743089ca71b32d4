import type { PoolReply } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { DevicePool } from "../../src/pool/device-pool.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test("a run learns for whom it waits when that lasts, and when it is over; its devices and waits are accounted for", () => {
  let nowMs = 0;
  const never = 1_000_000;
  const limits = { residents: 2, turnMs: never, patienceMs: never, yieldMs: never, beatLimitMs: never };
  const pool = new DevicePool(limits, { now: () => nowMs });
  const replies = { a: [] as PoolReply[], b: [] as PoolReply[] };
  const pass = (ms: number) => {
    for (let passed = 0; passed < ms; passed += 100) {
      nowMs += 100;
      vi.advanceTimersByTime(100);
    }
  };
  const devices = [{ id: "gpu:0", memoryMiB: 100 }];
  for (const run of ["a", "b"] as const) {
    pool.add(run, { reply: (reply) => replies[run].push(reply), end: (why) => expect.fail(why) });
    pool.received(run, { type: "join", member: { priority: 0, weight: 1, devices } });
    pool.received(run, { type: "request", devices: ["gpu:0"] });
  }
  const waits = () => replies.b.splice(0).filter(({ type }) => type === "waits");
  pass(900);
  expect(waits()).toEqual([]);
  pass(200);
  expect(waits()).toEqual([{ type: "waits", on: { type: "devices", runs: ["a"] }, forMs: 1000 }]);
  pass(9_000);
  expect(waits(), "the same again after a while alone").toEqual([]);
  pass(1_000);
  expect(waits()).toMatchObject([{ on: { runs: ["a"] }, forMs: 11_000 }]);
  pool.received("a", { type: "release", token: 1 });
  pass(200);
  expect(waits()).toEqual([{ type: "waits", on: null, forMs: 0 }]);
  expect(replies.a.some(({ type }) => type === "waits")).toBe(false);
  expect(pool.gone("a")).toMatchObject({ leases: 1, leasedMs: 11_100, waitedMs: 0, slowdown: 1 });
  expect(pool.gone("b")).toMatchObject({ leases: 1, leasedMs: 200, waitedMs: 11_100, slowdown: 11_300 / 200 });
  pool.close();
});
