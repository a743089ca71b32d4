import { expect, test } from "vitest";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect } from "../../src/device-lock/lock-messages.ts";

const devices = ["d0", "d1"].map((device) => ({ device, capacityBytes: 100 }));

/** A lock of a run that shares both devices: `first` on d0, `second` on d1. */
function leasedLock(): DeviceLockState {
  const lock = new DeviceLockState({ devices, isLeased: true, timeoutMs: 100 });
  for (const [index, worker] of ["first", "second"].entries()) {
    lock.addWorker({ worker, devices: [`d${index}`], residentBytes: 1, loaded: true });
    lock.openCall({ call: worker, worker, sequence: index, consumes: [], produces: [] });
  }
  return lock;
}
const acquire = (lock: DeviceLockState, call: string, nowMs = 0) => lock.acquire({ request: call, call, nowMs });
const lease = (token: number) => ({ lease: { token, devices: ["d0", "d1"] }, nowMs: 0 });
const types = (effects: readonly LockEffect[]): string[] => effects.map(({ type }) => type);
const tokenOf = (effects: readonly LockEffect[]): number =>
  (effects.find(({ type }) => type === "grant") as Extract<LockEffect, { type: "grant" }>).token;

test("nothing is granted without a lease, which is asked for once, of all devices that workers are on (LL1)", () => {
  const lock = leasedLock();
  expect(acquire(lock, "first")).toEqual([{ type: "ask-lease", devices: ["d0", "d1"] }]);
  expect(acquire(lock, "second")).toEqual([]);
  expect(lock.snapshot().devices.flatMap(({ holders }) => holders)).toEqual([]);
  expect(types(lock.leased(lease(1)))).toEqual(["grant", "grant"]);
});

test("a lease that nobody else wants is kept while nobody uses it, and released at once when somebody does (LL2)", () => {
  const lock = leasedLock();
  acquire(lock, "first");
  const token = tokenOf(lock.leased(lease(1)));
  expect(lock.release({ token })).toEqual([]);
  expect(types(acquire(lock, "second"))).toEqual(["grant"]);
  expect(lock.leaseWanted({ token: 1, drains: false })).toEqual([]);
  expect(lock.closeCall({ call: "second" })).toEqual([{ type: "release-lease", token: 1 }]);
});

test("one that others merely want serves whoever else asks; one that is to be drained serves nobody more (LL2, LL3)", () => {
  for (const drains of [false, true]) {
    const lock = leasedLock();
    acquire(lock, "first");
    const token = tokenOf(lock.leased(lease(1)));
    lock.leaseWanted({ token: 1, drains });
    expect(types(acquire(lock, "second"))).toEqual(drains ? [] : ["grant"]);
    expect(types(lock.release({ token }))).toEqual(drains ? ["release-lease", "ask-lease"] : []);
  }
});

test("a wish for a lease that is over, or a grant that was not asked for, changes nothing (LL1, LL2)", () => {
  const lock = leasedLock();
  lock.leased(lease(1));
  expect(types(acquire(lock, "first"))).toEqual(["ask-lease"]);
  lock.leased(lease(2));
  expect(lock.leaseWanted({ token: 1, drains: true })).toEqual([]);
  expect(types(acquire(lock, "second"))).toEqual(["grant"]);
});

test("a lease without a device that is needed is released for one that has it, when nobody uses it (LL1, LL2)", () => {
  const lock = leasedLock();
  acquire(lock, "first");
  const token = tokenOf(lock.leased({ lease: { token: 1, devices: ["d0"] }, nowMs: 0 }));
  expect(acquire(lock, "second")).toEqual([]);
  expect(lock.release({ token })).toEqual([
    { type: "release-lease", token: 1 },
    { type: "ask-lease", devices: ["d0", "d1"] },
  ]);
});

test("the wait for other runs is no wait of the lock, and is named (L5)", () => {
  const lock = leasedLock();
  acquire(lock, "first", 0);
  expect(lock.awaitsLease).toBe(true);
  expect(lock.edges()).toEqual([{ waiter: "first", waitsFor: "another run", on: "d0", kind: "device" }]);
  expect(lock.tick({ nowMs: 1_000_000 })).toEqual([]);
  acquire(lock, "second", 1_000_000);
  expect(types(lock.leased({ lease: { token: 1, devices: ["d0", "d1"] }, nowMs: 1_000_001 }))).toEqual([
    "grant",
    "grant",
  ]);
});
