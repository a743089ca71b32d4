import type { TagMemory } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import type { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect } from "../../src/device-lock/lock-messages.ts";
import { acquire, lines, lockOf, open, settle, streams } from "./told-lock.ts";

describe("L1 exclusive devices", () => {
  test("a device set is granted as a whole and to one holder; crossed sets do not deadlock", () => {
    const lock = lockOf({ a: [["0", "1"], 10], b: [["1", "0"], 10] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    expect(settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }))).toEqual(["onload a", "grant a 1"]);
    expect(acquire(lock, "b")).toEqual([]);
    expect(settle(lock, lock.release({ token: 1 }))).toEqual(["onload b", "grant b 2"]);
  });

  test("residents that fit together stay loaded", () => {
    const lock = lockOf({ a: [["0"], 40], b: [["0"], 60] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    lock.release({ token: 1 });
    settle(lock, lock.acquire({ request: 2, call: "b", nowMs: 0 }));
    lock.release({ token: 2 });
    expect(acquire(lock, "a")).toEqual(["grant a 3"]);
    expect(lock.snapshot().devices).toEqual([{ device: "0", capacityBytes: 100, usedBytes: 100, holders: ["a"] }]);
  });
});

describe("MT3 residency by tags", () => {
  const tag = (name: TagMemory["tag"], bytes: number, seconds = 0): TagMemory => {
    return { tag: name, bytes, releaseSeconds: seconds, restoreSeconds: seconds };
  };
  /** As an engine would: it knows what it has left, beside its residual bytes. */
  function engines(tags: Record<string, readonly TagMemory[]>, residual: Record<string, number> = {}, leak = 0) {
    const lock = lockOf(Object.fromEntries(Object.keys(tags).map((name) => [name, [["0"], 0]])));
    const loaded = new Map(Object.keys(tags).map((name) => [name, new Set<string>()]));
    for (const [at, [worker, all]] of Object.entries(tags).entries()) {
      open(lock, worker, at + 1);
      const residentBytes = all.reduce((sum, { bytes }) => sum + bytes, residual[worker] ?? 0);
      lock.reportMemory({ worker, residentBytes, tags: all });
    }
    let lastToken = 0;
    const grant = (call: string, needs?: readonly TagMemory["tag"][]): string[] => {
      if (lastToken > 0) lock.release({ token: lastToken });
      const trace: string[] = [];
      const queue = lock.acquire({ request: call, call, nowMs: 0, tags: needs });
      for (let effect = queue.shift(); effect; effect = queue.shift()) {
        trace.push(...lines([effect]));
        if (effect.type === "grant") lastToken = effect.token;
        if (effect.type !== "onload" && effect.type !== "offload") continue;
        const { worker } = effect;
        const there = loaded.get(worker)!;
        for (const each of effect.tags ?? []) effect.type === "onload" ? there.add(each) : there.delete(each);
        const stays = (tags[worker] ?? []).filter((each) => there.has(each.tag));
        const residualBytes = stays.reduce((sum, { bytes }) => sum + bytes, (residual[worker] ?? 0) + leak);
        queue.push(
          ...(effect.type === "onload" ? lock.onloaded({ worker }) : lock.offloaded({ worker, residualBytes })),
        );
      }
      return trace;
    };
    const usedBytes = () => lock.snapshot().devices[0]?.usedBytes;
    return { lock, grant, usedBytes };
  }

  test("the actor's weights stay beside the rollout's, and what costs least to move makes room", () => {
    const { grant, usedBytes } = engines({
      actor: [tag("weights", 30, 3), tag("optimiser", 30, 6)],
      rollout: [tag("weights", 30, 3), tag("cache", 30)],
    });
    expect(grant("actor")).toEqual(["onload actor weights optimiser", "grant actor 1"]);
    // New weights go from one to the other: the cache is out, and nothing else moves.
    expect(grant("rollout", ["weights"])).toEqual(["onload rollout weights", "grant rollout 2"]);
    expect(usedBytes()).toBe(90);
    expect(grant("rollout")).toEqual(["offload actor weights", "onload rollout cache", "grant rollout 3"]);
    expect(grant("actor")).toEqual(["offload rollout cache", "onload actor weights", "grant actor 4"]);
    expect(usedBytes()).toBe(90);
  });

  test("what a grant does not need of its own worker leaves where it is in the way", () => {
    const { grant } = engines({ rollout: [tag("weights", 60, 3), tag("cache", 70)] });
    expect(grant("rollout", ["weights"])).toEqual(["onload rollout weights", "grant rollout 1"]);
    expect(grant("rollout", ["cache"])).toEqual(["offload rollout weights", "onload rollout cache", "grant rollout 2"]);
    expect(grant("rollout", ["cache", "optimiser"])).toEqual(["grant rollout 3"]);
  });

  test("MT4: memory is measured before the next grant: what a release did not free makes more leave", () => {
    const tags = { rollout: [tag("weights", 40, 3), tag("cache", 40)], actor: [tag("weights", 55, 3)] };
    expect(engines(tags).grant("rollout")).toEqual(["onload rollout weights cache", "grant rollout 1"]);
    const honest = engines(tags, { rollout: 5 });
    honest.grant("rollout");
    expect(honest.grant("actor")).toEqual(["offload rollout cache", "onload actor weights", "grant actor 2"]);
    expect(honest.usedBytes()).toBe(100);
    const leaking = engines(tags, { rollout: 5 }, 10);
    leaking.grant("rollout");
    expect(leaking.grant("actor")).toEqual([
      "offload rollout cache",
      "offload rollout weights",
      "onload actor weights",
      "grant actor 2",
    ]);
    expect(leaking.usedBytes()).toBe(70);
    // What it never had twice, it does not need twice.
    expect(leaking.grant("rollout")).toEqual([
      "offload actor weights",
      "onload rollout weights cache",
      "grant rollout 3",
    ]);
  });

  test("memory that cannot hold what a grant asks: component, tag, and the bytes that are missing", () => {
    const { lock, grant } = engines({ rollout: [tag("weights", 60), tag("cache", 70)] }, { rollout: 5 });
    expect(grant("rollout", ["weights"])).toEqual(["onload rollout weights", "grant rollout 1"]);
    lock.release({ token: 1 });
    const [refusal] = lock.acquire({ request: 1, call: "rollout", nowMs: 0 });
    expect(refusal).toMatchObject({
      type: "refuse",
      error: {
        code: "device.out-of-memory",
        message:
          "'rollout' (weights 60, cache 70, residual 5) need 135 bytes on device '0', which has 100: 35 too many, and no room for cache of 'rollout'; use a larger device, more of them, or a smaller model",
        details: { component: "rollout", tag: "cache", missingBytes: 35 },
      },
    });
  });

  test("an engine that tells its tags only once it is loaded has all of them loaded, and its residual bytes count", () => {
    const lock = lockOf({ a: [["0"], 0], b: [["0"], 45] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    lock.reportMemory({ worker: "a", residentBytes: undefined });
    expect(acquire(lock, "a")).toEqual(["onload a"]);
    lock.reportMemory({ worker: "a", residentBytes: 90, tags: [tag("weights", 40, 1), tag("cache", 40)] });
    expect(lines(lock.onloaded({ worker: "a" }))).toEqual(["grant a 1"]);
    lock.release({ token: 1 });
    expect(acquire(lock, "b")).toEqual(["offload a cache"]);
    expect(lines(lock.offloaded({ worker: "a", residualBytes: 50 }))).toEqual(["onload b"]);
    expect(lock.snapshot().devices).toMatchObject([{ usedBytes: 95 }]);
  });
});

describe("L4 what an offload leaves", () => {
  const residual = (lock: DeviceLockState, effects: readonly LockEffect[], bytes: Record<string, number>): string[] => {
    const trace: string[] = [];
    const queue = [...effects];
    for (let effect = queue.shift(); effect; effect = queue.shift()) {
      trace.push(...lines([effect]));
      if (effect.type === "offload")
        queue.push(...lock.offloaded({ worker: effect.worker, residualBytes: bytes[effect.worker] }));
      if (effect.type === "onload") queue.push(...lock.onloaded({ worker: effect.worker }));
    }
    return trace;
  };
  const use = (lock: DeviceLockState, worker: string, bytes: Record<string, number>): string[] => {
    const trace = residual(lock, lock.acquire({ request: worker, call: worker, nowMs: 0 }), bytes);
    const granted = trace.find((line) => line.startsWith("grant"));
    if (granted !== undefined) trace.push(...lines(lock.release({ token: Number(granted.split(" ")[2]) })));
    return trace;
  };
  const opened = (workers: Record<string, [string[], number]>): DeviceLockState => {
    const lock = lockOf(workers);
    for (const [at, worker] of Object.keys(workers).entries()) open(lock, worker, at + 1);
    return lock;
  };

  test("counts beside whoever is loaded next", () => {
    const lock = opened({ a: [["0"], 60], b: [["0"], 60], c: [["0"], 20] });
    use(lock, "a", {});
    expect(use(lock, "b", { a: 30 })).toEqual(["offload a", "onload b", "grant b 2"]);
    expect(lock.snapshot().devices).toMatchObject([{ usedBytes: 90 }]);
    expect(use(lock, "c", { b: 0 })).toEqual(["offload b", "onload c", "grant c 3"]);
    expect(lock.snapshot().devices).toMatchObject([{ usedBytes: 50 }]);
  });

  test("is part of what the worker needs itself, and is gone with its process", () => {
    const lock = opened({ a: [["0"], 60], b: [["0"], 80] });
    use(lock, "a", {});
    use(lock, "b", { a: 20 });
    expect(use(lock, "a", { b: 40 })).toEqual(["offload b", "onload a", "grant a 3"]);
    lock.workerDied({ worker: "a" });
    lock.addWorker({ worker: "a", devices: ["0"], residentBytes: 60 });
    expect(lock.snapshot().devices).toMatchObject([{ usedBytes: 40 }]);
  });

  test("refuses at once who does not fit beside it, and says whose it is", () => {
    const lock = opened({ a: [["0"], 60], b: [["0"], 80] });
    use(lock, "a", {});
    const refused = lock.acquire({ request: 1, call: "b", nowMs: 0 });
    expect(lines(refused)).toEqual(["offload a"]);
    const [refusal] = lock.offloaded({ worker: "a", residualBytes: 30 });
    expect(refusal).toMatchObject({ type: "refuse", call: "b", error: { code: "device.out-of-memory" } });
    expect((refusal as Extract<LockEffect, { type: "refuse" }>).error.message).toBe(
      "'b' need 80 bytes on device '0', which has 100 and where 'a' keeps 30 while it is offloaded: 10 too many; use a larger device, more of them, or a smaller model",
    );
    expect(lines(lock.acquire({ request: 2, call: "a", nowMs: 0 }))).toEqual(["onload a"]);
  });
});

describe("L2 producers before consumers", () => {
  test("a consumer that asks first waits until its producer has acquired and released", () => {
    const lock = lockOf({ rollout: [["0"], 10], actor: [["0"], 10] });
    open(lock, "rollout", 1, { produces: streams("episodes") });
    open(lock, "actor", 2, { consumes: streams("episodes") });
    expect(acquire(lock, "actor")).toEqual([]);
    expect(settle(lock, lock.acquire({ request: 1, call: "rollout", nowMs: 0 }))).toEqual([
      "onload rollout",
      "grant rollout 1",
    ]);
    expect(settle(lock, lock.release({ token: 1 }))).toEqual(["onload actor", "grant actor 2"]);
  });

  test("the order reaches through components on other devices", () => {
    const lock = lockOf({ rollout: [["0"], 10], inference: [["1"], 10], actor: [["0"], 10] });
    open(lock, "rollout", 1, { produces: streams("episodes") });
    open(lock, "inference", 2, { consumes: streams("episodes"), produces: streams("scored") });
    open(lock, "actor", 3, { consumes: streams("scored") });
    expect(acquire(lock, "actor")).toEqual([]);
    expect(lines(lock.closeCall({ call: "rollout" }))).toEqual(["onload actor"]);
  });

  test("a producer on disjoint devices does not hold its consumer up", () => {
    const lock = lockOf({ rollout: [["0"], 10], actor: [["1"], 10] });
    open(lock, "rollout", 1, { produces: streams("episodes") });
    open(lock, "actor", 2, { consumes: streams("episodes") });
    expect(acquire(lock, "actor")).toEqual(["onload actor"]);
  });

  test("a consumer waits for each rank that shares its device, and for no other", () => {
    const lock = lockOf({ "r/0": [["0"], 10], "r/1": [["1"], 10], "a/0": [["0"], 10] });
    for (const rank of ["r/0", "r/1"]) open(lock, rank, 1, { produces: streams("episodes") });
    open(lock, "a/0", 2, { consumes: streams("episodes") });
    settle(lock, lock.acquire({ request: 1, call: "r/0", nowMs: 0 }));
    acquire(lock, "a/0");
    expect(lines(lock.release({ token: 1 }))).toEqual(["onload a/0"]);
  });

  test("a producer that never locks lets its consumer go with its first item, or with its end", () => {
    for (const release of ["enqueued", "closeCall"] as const) {
      const lock = lockOf({ tool: [["0"], 10], actor: [["0"], 10] });
      open(lock, "tool", 1, { produces: streams("results") });
      open(lock, "actor", 2, { consumes: streams("results") });
      acquire(lock, "actor");
      expect(lines(lock[release]({ call: "tool", stream: { channel: "results", stream: 0 } }))).toEqual([
        "onload actor",
      ]);
    }
  });

  describe("a producer that has lent its devices", () => {
    /** The policy has answered its simulator and waits for the next observations; the trainer is to take its episodes. */
    const inCycle = (trainerProduces: string[] = []): DeviceLockState => {
      const lock = lockOf({ simulator: [["1"], 10], policy: [["0"], 60], trainer: [["0"], 60] });
      open(lock, "simulator", 1, {
        produces: streams("observations"),
        consumes: streams("actions", ...trainerProduces),
      });
      open(lock, "policy", 2, { produces: streams("actions", "episodes"), consumes: streams("observations") });
      open(lock, "trainer", 3, { consumes: streams("episodes"), produces: streams(...trainerProduces) });
      settle(lock, lock.acquire({ request: 1, call: "policy", nowMs: 0 }));
      lock.enqueued({ call: "policy", stream: { channel: "actions", stream: 0 } });
      lock.park({ call: "policy", stream: { channel: "observations", stream: 0 }, on: "take" });
      lock.lend({ token: 1 });
      return lock;
    };
    const put = { call: "policy", stream: { channel: "episodes", stream: 0 } };

    test("keeps a consumer off them, for which it has nothing yet", () => {
      const lock = inCycle();
      expect(acquire(lock, "trainer")).toEqual([]);
      lock.unpark({ call: "policy" });
      expect(lines(lock.reclaim({ request: 2, call: "policy", nowMs: 0 }))).toEqual(["grant policy 2"]);
      expect(lines(lock.enqueued(put))).toEqual([]);
      lock.park({ call: "policy", stream: { channel: "observations", stream: 0 }, on: "take" });
      expect(lines(lock.lend({ token: 2 }))).toEqual(["offload policy"]);
    });

    test("lets one go for which it has something, or which it waits for, however indirectly, and all with its end", () => {
      const fed = inCycle();
      expect(acquire(fed, "trainer")).toEqual([]);
      expect(lines(fed.enqueued(put))).toEqual(["offload policy"]);
      const awaited = inCycle(["weights"]);
      expect(acquire(awaited, "trainer")).toEqual([]);
      const waits = { call: "simulator", stream: { channel: "weights", stream: 0 }, on: "take" } as const;
      expect(lines(awaited.park(waits))).toEqual(["offload policy"]);
      const ended = inCycle();
      acquire(ended, "trainer");
      expect(lines(ended.closeCall({ call: "policy" }))).toEqual(["offload policy"]);
    });
  });

  test("of two calls that feed each other the earlier goes first, unless it waits for the later one's data", () => {
    const cycle = (): DeviceLockState => {
      const lock = lockOf({ simulator: [["0"], 10], generator: [["0"], 10] });
      open(lock, "simulator", 1, { produces: streams("observations"), consumes: streams("actions") });
      open(lock, "generator", 2, { produces: streams("actions"), consumes: streams("observations") });
      return lock;
    };
    const ordered = cycle();
    expect(acquire(ordered, "generator")).toEqual([]);
    expect(acquire(ordered, "simulator")).toEqual(["onload simulator"]);
    const circular = cycle();
    expect(acquire(circular, "generator")).toEqual([]);
    expect(lines(circular.park({ call: "simulator", stream: { channel: "actions", stream: 0 }, on: "take" }))).toEqual([
      "onload generator",
    ]);
  });

  test("among those that may go, program order counts before arrival", () => {
    const lock = lockOf({ a: [["0"], 10], b: [["0"], 10], c: [["0"], 10] });
    for (const [i, call] of ["a", "b", "c"].entries()) open(lock, call, i);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    acquire(lock, "c");
    acquire(lock, "b");
    expect(lines(lock.release({ token: 1 }))).toEqual(["onload b"]);
  });
});

describe("L3 fencing", () => {
  test("a dead holder's devices are freed and its token is refused", () => {
    const lock = lockOf({ a: [["0"], 80], b: [["0"], 80] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    acquire(lock, "b");
    expect(lock.validate(1)).toBeUndefined();
    // No offload: the memory went with the process.
    expect(lines(lock.workerDied({ worker: "a" }))).toEqual(["onload b"]);
    expect(lock.validate(1)?.code).toBe("lock.stale-token");
    expect(lines(lock.release({ token: 1 }))).toEqual(["stale 1"]);
    expect(lines(lock.onloaded({ worker: "b" }))).toEqual(["grant b 2"]);
  });

  test("a worker that dies while it is loaded or offloaded leaves nobody waiting", () => {
    const lock = lockOf({ a: [["0"], 80], b: [["0"], 80], c: [["0"], 80] });
    for (const [i, call] of ["a", "b", "c"].entries()) open(lock, call, i);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    lock.release({ token: 1 });
    expect(acquire(lock, "b")).toEqual(["offload a"]);
    expect(acquire(lock, "c")).toEqual([]);
    expect(lines(lock.workerDied({ worker: "a" }))).toEqual(["onload b"]);
    expect(lines(lock.workerDied({ worker: "b" }))).toEqual(["onload c"]);
  });
});

describe("L4 onload and offload", () => {
  test("the grant follows the offload of the resident and the onload of the worker", () => {
    const lock = lockOf({ a: [["0"], 80], b: [["0"], 80] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    acquire(lock, "b");
    expect(lines(lock.release({ token: 1 }))).toEqual(["offload a"]);
    expect(lines(lock.offloaded({ worker: "a" }))).toEqual(["onload b"]);
    expect(lines(lock.onloaded({ worker: "b" }))).toEqual(["grant b 2"]);
  });

  test("least recently used residents go, and none whose memory is not needed", () => {
    const lock = lockOf({ small: [["0"], 20], large: [["0"], 50], recent: [["0"], 30], next: [["0"], 60] });
    for (const [i, call] of ["small", "large", "recent", "next"].entries()) open(lock, call, i);
    for (const [i, call] of ["small", "large", "recent"].entries()) {
      settle(lock, lock.acquire({ request: call, call, nowMs: 0 }));
      lock.release({ token: i + 1 });
    }
    expect(settle(lock, lock.acquire({ request: 9, call: "next", nowMs: 0 }))).toEqual([
      "offload small",
      "offload large",
      "onload next",
      "grant next 4",
    ]);
    const other = lockOf({ small: [["0"], 20], large: [["0"], 50], recent: [["0"], 30], next: [["0"], 50] });
    for (const [i, call] of ["small", "large", "recent", "next"].entries()) open(other, call, i);
    for (const [i, call] of ["small", "large", "recent"].entries()) {
      settle(other, other.acquire({ request: call, call, nowMs: 0 }));
      other.release({ token: i + 1 });
    }
    expect(settle(other, other.acquire({ request: 9, call: "next", nowMs: 0 }))).toEqual([
      "offload large",
      "onload next",
      "grant next 4",
    ]);
  });

  test("a failed onload refuses the request with the cause and frees the devices", () => {
    const lock = lockOf({ a: [["0"], 80], b: [["0"], 10] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    acquire(lock, "a");
    acquire(lock, "b");
    const cause = new Error("no such checkpoint");
    const effects = lock.onloadFailed({ worker: "a", error: cause });
    expect(lines(effects)).toEqual(["refuse a: call.failed", "onload b"]);
    expect(effects[0]).toMatchObject({ error: { message: "'a' could not onload: no such checkpoint", cause } });
  });

  test("a failed offload refuses whoever needed the memory, and the resident stays", () => {
    const lock = lockOf({ a: [["0"], 80], b: [["0"], 80] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    lock.release({ token: 1 });
    acquire(lock, "b");
    expect(lines(lock.offloadFailed({ worker: "a", error: "stuck" }))).toEqual(["refuse b: call.failed"]);
    expect(acquire(lock, "a")).toEqual(["grant a 2"]);
  });

  test("a component that can never fit is refused with by how much", () => {
    const lock = lockOf({ a: [["0"], 130] });
    open(lock, "a", 1);
    const [refusal] = lock.acquire({ request: 1, call: "a", nowMs: 0 });
    expect(refusal).toMatchObject({
      type: "refuse",
      error: { code: "device.out-of-memory", details: { excessBytes: 30 } },
    });
  });
});

describe("L5 nesting and limits", () => {
  test("a second lock of the same call nests: one token, two releases", () => {
    const lock = lockOf({ a: [["0"], 10], b: [["0"], 10] });
    open(lock, "a", 1);
    open(lock, "b", 2);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    expect(acquire(lock, "a")).toEqual(["grant a 1"]);
    acquire(lock, "b");
    expect(lines(lock.release({ token: 1 }))).toEqual([]);
    expect(lines(lock.release({ token: 1 }))).toEqual(["onload b"]);
  });

  test("a wait that is too long is refused with the whole chain of who waits for whom", () => {
    const lock = lockOf({ "actor/0": [["cpu:1"], 10], "rollout/0": [["cpu:1"], 10] }, { timeoutMs: 5000 });
    open(lock, "actor/0", 1);
    open(lock, "rollout/0", 2);
    settle(lock, lock.acquire({ request: 1, call: "actor/0", nowMs: 0 }));
    acquire(lock, "rollout/0", 1000);
    expect(lock.tick({ nowMs: 5999 })).toEqual([]);
    const edges = [{ waiter: "actor/0", waitsFor: "simulator/0", on: "episodes", kind: "data" as const }];
    const [refusal] = lock.tick({ nowMs: 6000, edges: () => edges });
    expect(refusal).toMatchObject({
      type: "refuse",
      error: {
        code: "lock.timeout",
        message:
          "device lock on 'cpu:1' not granted within 5000 ms: held by 'actor/0', which waits for 'episodes' from 'simulator/0'; raise supervision.lockTimeoutMs or check that worker",
      },
    });
  });

  test("a chain that runs in a circle is reported as a deadlock", () => {
    const lock = lockOf({ "actor/0": [["cpu:1"], 10], "rollout/0": [["cpu:1"], 10] }, { timeoutMs: 5000 });
    open(lock, "actor/0", 1);
    open(lock, "rollout/0", 2);
    settle(lock, lock.acquire({ request: 1, call: "actor/0", nowMs: 0 }));
    acquire(lock, "rollout/0");
    const edges = [{ waiter: "actor/0", waitsFor: "rollout/0", on: "episodes", kind: "data" as const }];
    const [refusal] = lock.tick({ nowMs: 5000, edges: () => edges });
    expect(refusal).toMatchObject({
      error: {
        message:
          "device lock on 'cpu:1' not granted within 5000 ms: held by 'actor/0', which waits for 'episodes' from 'rollout/0'; this is a deadlock: 'rollout/0' → 'actor/0' → 'rollout/0'; raise supervision.lockTimeoutMs or check that worker",
      },
    });
  });
});

describe("loans", () => {
  test("a holder that waits lends its devices and comes first when it wants them back, with a new token", () => {
    const lock = lockOf({ a: [["0"], 10], b: [["0"], 10], c: [["0"], 10] });
    for (const [i, call] of ["a", "b", "c"].entries()) open(lock, call, 3 - i);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    acquire(lock, "b");
    expect(settle(lock, lock.lend({ token: 1 }))).toEqual(["onload b", "grant b 2"]);
    expect(lock.validate(1)?.code).toBe("lock.stale-token");
    acquire(lock, "c");
    expect(lines(lock.reclaim({ request: 5, call: "a", nowMs: 0 }))).toEqual([]);
    expect(settle(lock, lock.release({ token: 2 }))).toEqual(["grant a 3"]);
    expect(settle(lock, lock.release({ token: 3 }))).toEqual(["onload c", "grant c 4"]);
  });

  test("a loan that nobody used is reclaimed at once, without a swap", () => {
    const lock = lockOf({ a: [["0"], 10] });
    open(lock, "a", 1);
    settle(lock, lock.acquire({ request: 1, call: "a", nowMs: 0 }));
    lock.acquire({ request: 2, call: "a", nowMs: 0 });
    lock.lend({ token: 1 });
    expect(lines(lock.reclaim({ request: 3, call: "a", nowMs: 0 }))).toEqual(["grant a 2"]);
    lock.release({ token: 2 });
    expect(lock.snapshot().holds).toMatchObject([{ call: "a", count: 1 }]);
  });
});

describe("gangs", () => {
  const gangs = (): DeviceLockState => {
    // `p` feeds the gang from a device of its own.
    const lock = lockOf({
      "a/0": [["0"], 10],
      "a/1": [["1"], 10],
      "b/0": [["0"], 10],
      "b/1": [["1"], 10],
      p: [["2"], 10],
    });
    open(lock, "p", 0, { produces: streams("data") });
    for (const rank of ["a/0", "a/1"]) open(lock, rank, 1, { gang: "a", consumes: streams("data") });
    for (const rank of ["b/0", "b/1"]) open(lock, rank, 2, { gang: "b" });
    return lock;
  };

  test("ranks that run collectives are granted together, so two groups cannot hold half of the devices each", () => {
    const lock = gangs();
    expect(acquire(lock, "a/0")).toEqual([]);
    expect(acquire(lock, "b/1")).toEqual([]);
    expect(acquire(lock, "b/0")).toEqual(["onload b/1", "onload b/0"]);
    expect(acquire(lock, "a/1")).toEqual([]);
    expect(lines([...lock.onloaded({ worker: "b/1" }), ...lock.onloaded({ worker: "b/0" })])).toEqual([
      "grant b/1 1",
      "grant b/0 2",
    ]);
    expect(settle(lock, lock.release({ token: 1 }))).toEqual([]);
    expect(settle(lock, lock.release({ token: 2 }))).toEqual([
      "onload a/0",
      "onload a/1",
      "grant a/0 3",
      "grant a/1 4",
    ]);
  });

  test("a gang does not wait for a rank whose call has ended", () => {
    const lock = gangs();
    acquire(lock, "a/0");
    expect(lines(lock.closeCall({ call: "a/1" }))).toEqual(["onload a/0"]);
  });

  test("a gang's loan takes effect when all have lent, and is returned to all together", () => {
    const lock = gangs();
    for (const rank of ["a/0", "a/1"]) settle(lock, lock.acquire({ request: rank, call: rank, nowMs: 0 }));
    settle(lock, lock.onloaded({ worker: "a/0" }));
    settle(lock, lock.onloaded({ worker: "a/1" }));
    acquire(lock, "b/0");
    acquire(lock, "b/1");
    expect(lines(lock.lend({ token: 1 }))).toEqual([]);
    expect(settle(lock, lock.lend({ token: 2 }))).toEqual(["onload b/0", "onload b/1", "grant b/0 3", "grant b/1 4"]);
    lock.park({ call: "a/1", stream: { channel: "data", stream: 0 }, on: "take" });
    expect(lines(lock.reclaim({ request: 7, call: "a/0", nowMs: 0 }))).toEqual([]);
    lock.release({ token: 3 });
    expect(lines(lock.release({ token: 4 }))).toEqual([]);
    lock.unpark({ call: "a/1" });
    expect(lines(lock.reclaim({ request: 8, call: "a/1", nowMs: 0 }))).toEqual(["grant a/0 5", "grant a/1 6"]);
  });
});
