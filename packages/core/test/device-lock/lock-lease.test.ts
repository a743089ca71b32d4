import { expect, test } from "vitest";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect } from "../../src/device-lock/lock-messages.ts";

const workers = { first: ["d0"], second: ["d1"], both: ["d0", "d1"], again: ["d0", "d1"] };

/** A lock of a run that shares both devices: `first` on d0, `second` on d1, `both` and `again` on both. */
function leasedLock(): DeviceLockState {
  const devices = ["d0", "d1"].map((device) => ({ device, capacityBytes: 100 }));
  const lock = new DeviceLockState({ devices, isLeased: true, timeoutMs: 100 });
  for (const [index, [worker, own]] of Object.entries(workers).entries()) {
    lock.addWorker({ worker: `all/${worker}`, devices: own, residentBytes: 1, loaded: true });
    lock.openCall({ call: worker, worker: `all/${worker}`, sequence: index, consumes: [], produces: [] });
  }
  return lock;
}
const acquire = (lock: DeviceLockState, call: string, nowMs = 0) => lock.acquire({ request: call, call, nowMs });
const leased = (lock: DeviceLockState, token: number, ...devices: string[]) =>
  lock.lease({ type: "leased", lease: { token, devices } }, 0);
const ask = (...devices: string[]) => ({ type: "ask-lease", devices, component: "all" });
const types = (effects: readonly LockEffect[]): string[] => effects.map(({ type }) => type);
const tokenOf = (effects: readonly LockEffect[]): number =>
  (effects.find(({ type }) => type === "grant") as Extract<LockEffect, { type: "grant" }>).token;

test("nothing is granted without a lease, which is asked for once, of all devices that a party needs (LL1)", () => {
  const lock = leasedLock();
  expect(acquire(lock, "both")).toEqual([ask("d0", "d1")]);
  expect(acquire(lock, "again")).toEqual([]);
  expect(lock.snapshot().devices.flatMap(({ holders }) => holders)).toEqual([]);
  expect(types(leased(lock, 1, "d0", "d1"))).toEqual(["grant"]);
});

test("parties on devices of their own have leases of their own: neither waits for the other (LL1, LL2, LL3)", () => {
  const lock = leasedLock();
  expect(acquire(lock, "first")).toEqual([ask("d0")]);
  expect(acquire(lock, "second")).toEqual([ask("d1")]);
  expect(types(leased(lock, 1, "d1"))).toEqual(["grant"]);
  const token = tokenOf(leased(lock, 2, "d0"));
  expect(lock.lease({ type: "lease-wanted", token: 2, drains: true }, 0)).toEqual([]);
  expect(lock.release({ token })).toEqual([{ type: "release-lease", token: 2 }]);
  expect(lock.snapshot().devices.map(({ holders }) => holders.length)).toEqual([0, 1]);
});

test("whatever is under leases serves any party, whoever asked for it (LL1)", () => {
  const lock = leasedLock();
  acquire(lock, "first");
  acquire(lock, "second");
  const tokens = [leased(lock, 1, "d0"), leased(lock, 2, "d1")].map(tokenOf);
  expect(acquire(lock, "both")).toEqual([]);
  expect(tokens.flatMap((token) => types(lock.release({ token })))).toEqual(["grant"]);
});

test("a lease that nobody else wants is kept while nobody uses it, and released at once when somebody does (LL2)", () => {
  const lock = leasedLock();
  acquire(lock, "both");
  const token = tokenOf(leased(lock, 1, "d0", "d1"));
  expect(lock.release({ token })).toEqual([]);
  expect(types(acquire(lock, "second"))).toEqual(["grant"]);
  expect(lock.lease({ type: "lease-wanted", token: 1, drains: false }, 0)).toEqual([]);
  expect(lock.closeCall({ call: "second" })).toEqual([{ type: "release-lease", token: 1 }]);
});

test("one that others merely want serves whoever else asks; one that is to be drained serves nobody more (LL2, LL3)", () => {
  for (const drains of [false, true]) {
    const lock = leasedLock();
    acquire(lock, "both");
    const token = tokenOf(leased(lock, 1, "d0", "d1"));
    lock.lease({ type: "lease-wanted", token: 1, drains }, 0);
    expect(types(acquire(lock, "again"))).toEqual([]);
    expect(types(lock.release({ token }))).toEqual(drains ? ["release-lease", "ask-lease"] : ["grant"]);
  }
});

test("a wish for a lease that is over, or a grant that was not asked for, changes nothing (LL1, LL2)", () => {
  const lock = leasedLock();
  leased(lock, 1, "d0");
  expect(types(acquire(lock, "first"))).toEqual(["ask-lease"]);
  const token = tokenOf(leased(lock, 2, "d0"));
  expect(lock.lease({ type: "lease-wanted", token: 1, drains: true }, 0)).toEqual([]);
  expect(lock.release({ token })).toEqual([]);
});

test("what a party lacks is asked for with what it has, which is released first, when nobody uses it (LL1, LL2, LL3)", () => {
  const lock = leasedLock();
  acquire(lock, "first");
  const token = tokenOf(leased(lock, 1, "d0"));
  expect(acquire(lock, "both")).toEqual([]);
  expect(lock.release({ token })).toEqual([{ type: "release-lease", token: 1 }, ask("d0", "d1")]);
  // Until both come together, a part of them is asked for by nobody.
  expect(acquire(lock, "second")).toEqual([]);
  expect(types(leased(lock, 2, "d0", "d1"))).toEqual(["grant"]);
});

test("a part of them that is released because others want it is asked for again with the rest (LL2, LL3)", () => {
  const lock = leasedLock();
  acquire(lock, "second");
  lock.release({ token: tokenOf(leased(lock, 1, "d1")) });
  acquire(lock, "first");
  const token = tokenOf(leased(lock, 2, "d0"));
  acquire(lock, "both");
  lock.lease({ type: "lease-wanted", token: 2, drains: true }, 0);
  expect(lock.release({ token })).toEqual([
    { type: "release-lease", token: 2 },
    { type: "release-lease", token: 1 },
    ask("d0", "d1"),
  ]);
});

test("one that serves another component goes with the rest of what a party needs (LL2, LL4)", () => {
  const devices = ["d0", "d1"].map((device) => ({ device, capacityBytes: 100 }));
  const lock = new DeviceLockState({ devices, isLeased: true, timeoutMs: 100 });
  const open = (call: string, worker: string, own: readonly string[], sequence: number): void => {
    lock.addWorker({ worker, devices: own, residentBytes: 1, loaded: true });
    lock.openCall({ call, worker, sequence, consumes: [], produces: [] });
  };
  open("one", "maker/0", ["d0"], 0);
  open("other", "maker/1", ["d1"], 1);
  open("both", "trainer/0", ["d0", "d1"], 2);
  for (const call of ["one", "other"]) acquire(lock, call);
  const first = tokenOf(lock.lease({ type: "leased", lease: { token: 1, devices: ["d0"], only: "maker" } }, 0));
  const second = tokenOf(leased(lock, 2, "d1"));
  acquire(lock, "both");
  lock.release({ token: first });
  expect(types(lock.release({ token: second }))).toEqual(["release-lease", "release-lease", "ask-lease"]);
});

test("the wait for other runs is no wait of the lock, and is named (L5)", () => {
  const lock = leasedLock();
  acquire(lock, "first", 0);
  expect(lock.awaitsLease).toBe(true);
  expect(lock.edges()).toEqual([{ waiter: "all/first", waitsFor: "another run", on: "d0", kind: "device" }]);
  expect(lock.tick({ nowMs: 1_000_000 })).toEqual([]);
  acquire(lock, "second", 1_000_000);
  const types1 = types(lock.lease({ type: "leased", lease: { token: 1, devices: ["d0"] } }, 1_000_001));
  expect(types1).toEqual(["grant"]);
});

test("beside another run one component computes, the one that was named; another has the lease released first (LL4)", () => {
  const devices = [{ device: "d0", capacityBytes: 100 }];
  const lock = new DeviceLockState({ devices, isLeased: true, timeoutMs: 100 });
  for (const [sequence, worker] of ["rollout/0", "train/0"].entries()) {
    lock.addWorker({ worker, devices: ["d0"], residentBytes: 1, loaded: true });
    lock.openCall({ call: worker, worker, sequence, consumes: [], produces: [] });
  }
  const shares = (component: string | null) => ({ type: "share-lease", token: 1, component });
  acquire(lock, "rollout/0");
  expect(lock.lease({ type: "lease-share", token: 1 }, 0)).toEqual([]);
  const token = tokenOf(leased(lock, 1, "d0"));
  expect(lock.lease({ type: "lease-share", token: 1 }, 0)).toEqual([shares("rollout")]);
  expect(lock.release({ token })).toEqual([]);
  expect(lock.lease({ type: "lease-share", token: 1 }, 0)).toEqual([shares(null)]);
  expect(types(acquire(lock, "rollout/0"))).toEqual(["grant", "use-lease"]);
  expect(lock.lease({ type: "lease-share", token: 1 }, 0)).toEqual([shares("rollout")]);
  lock.closeCall({ call: "rollout/0" });
  expect(acquire(lock, "train/0")).toEqual([
    { type: "release-lease", token: 1 },
    { type: "ask-lease", devices: ["d0"], component: "train" },
  ]);
  const beside = lock.lease({ type: "leased", lease: { token: 2, devices: ["d0"], only: "run/train" } }, 0);
  expect(types(beside)).toEqual(["grant"]);
  lock.openCall({ call: "next", worker: "rollout/0", sequence: 3, consumes: [], produces: [] });
  acquire(lock, "next");
  expect(lock.lease({ type: "lease-alone", token: 2 }, 0)).toEqual([]);
  expect(types(lock.release({ token: tokenOf(beside) }))).toEqual(["grant", "use-lease"]);
});
