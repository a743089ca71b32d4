import { afterEach, describe, expect, test } from "vitest";
import { pidOf, startCluster, type TestCluster } from "../support/cluster.ts";
import { Numbers, ProbeWorker } from "../support/workers/probe.ts";

const MiB = 2 ** 20;
let world: TestCluster;
afterEach(() => world.close());

/** Three workers on one device of 100 MiB. */
async function launch(memoryMiB: number, supervision = {}) {
  world = await startCluster({
    cluster: { devices: 1, memoryPerDeviceMiB: 100 },
    placement: { mode: "temporal" },
    supervision,
  });
  const names = ["rollout", "inference", "actor"];
  const workers = await Promise.all(
    names.map((name) =>
      world.cluster.launch(ProbeWorker, { memoryBytes: memoryMiB * MiB }, { name, ranks: { fixed: 1 } }),
    ),
  );
  await world.cluster.start();
  return workers;
}

describe("three workers take turns on one device", () => {
  test("L1, L4: what does not fit together is offloaded before the next is loaded, and each is loaded whenever it runs", async () => {
    const workers = await launch(40);
    for (let round = 0; round < 2; round++) {
      const used = workers.map((worker) => worker.useDevices(3, 10));
      expect(await Promise.all(used.map((each) => each.first()))).toEqual([true, true, true]);
    }
    const swaps = await Promise.all(workers.map((worker) => worker.numSwaps().first()));
    // Two of them fit, three do not: each round somebody moves, and nobody moves more often than it held the lock.
    const onloads = swaps.map(({ onload }) => onload);
    expect(onloads.reduce((sum, each) => sum + each, 0)).toBeGreaterThan(3);
    for (const { onload, offload } of swaps) {
      expect(onload).toBeLessThanOrEqual(6);
      expect(offload - onload).toBeGreaterThanOrEqual(0); // once more than onloaded, before the first time, if not loaded now
      expect(offload - onload).toBeLessThanOrEqual(1);
    }
  });

  test("L4: what fits together stays loaded: no needless swap", async () => {
    const workers = await launch(30);
    for (let round = 0; round < 2; round++) {
      const used = workers.map((worker) => worker.useDevices(2, 5));
      expect(await Promise.all(used.map((each) => each.first()))).toEqual([true, true, true]);
    }
    for (const worker of workers) expect(await worker.numSwaps().first()).toEqual({ onload: 1, offload: 1 });
  });

  test("one that alone does not fit is refused with the figures", async () => {
    const [worker] = await launch(140);
    await expect(Promise.resolve(worker?.useDevices(1, 1))).rejects.toMatchObject({
      code: "device.out-of-memory",
      message: expect.stringContaining("cpu:0"),
    });
  });

  test("L3: the devices of a holder that dies are free, and it gets them again", async () => {
    const [a, b] = await launch(60);
    const first = a?.useDevices(1, 3000);
    await new Promise((resolve) => setTimeout(resolve, 300));
    const second = b?.useDevices(1, 5);
    const pid = pidOf(world.events, "rollout/0");
    process.kill(pid, "SIGKILL");
    expect(await second?.first()).toBe(true);
    expect(await first?.first()).toBe(true);
    expect(world.cluster.restarts).toBe(1);
  });

  test("WH2: whoever does not give its devices back has none when its call has ended, well or cancelled", async () => {
    const [a, b] = await launch(60);
    await a?.keepDevices();
    expect(await b?.useDevices(1, 1).first()).toBe(true);
    const hanging = a?.keepDevices(true);
    const waiting = b?.useDevices(1, 1);
    await new Promise((resolve) => setTimeout(resolve, 300));
    hanging?.cancel();
    await expect(Promise.resolve(hanging)).rejects.toMatchObject({ code: "call.cancelled" });
    expect(await waiting?.first()).toBe(true);
  });

  test("L5: a wait that is too long names the whole chain", async () => {
    const [a, b] = await launch(40, { lockTimeoutMs: 700 });
    a?.useDevices(1, 20_000).then(undefined, () => {});
    await new Promise((resolve) => setTimeout(resolve, 300));
    await expect(Promise.resolve(b?.useDevices(1, 1))).rejects.toMatchObject({
      code: "lock.timeout",
      message: expect.stringMatching(/device lock on 'cpu:0' not granted within 700 ms: held by 'rollout\/0'/),
      origin: { worker: "inference/0", method: "useDevices" },
    });
  });
});

test("LW1: what a call has asked for before it has its devices is a reason to lend them, too", async () => {
  const [consumer, producer] = await launch(60, { lockTimeoutMs: 20_000 });
  const items = world.cluster.channel("items", Numbers);
  const consuming = consumer?.consumeEarly(items.source);
  await new Promise((resolve) => setTimeout(resolve, 300));
  await producer?.produceLocked(items.sink, [7]);
  expect(await consuming?.first()).toEqual([7]);
});

test("L2: pipelines through one device neither deadlock nor lose what they lend while they wait", async () => {
  world = await startCluster({
    cluster: { devices: 1, memoryPerDeviceMiB: 100 },
    placement: { mode: "temporal" },
    flow: { granularity: 2, capacity: 4 },
  });
  const { cluster } = world;
  const config = { memoryBytes: 60 * MiB };
  const first = await cluster.launch(ProbeWorker, config, { name: "first", ranks: { fixed: 1 } });
  const second = await cluster.launch(ProbeWorker, config, { name: "second", ranks: { fixed: 1 } });
  const third = await cluster.launch(ProbeWorker, config, { name: "third", ranks: { fixed: 1 } });
  const [a, b] = [cluster.channel("a", Numbers), cluster.channel("b", Numbers)];
  const numbers = Array.from({ length: 20 }, (_, i) => i);
  first.produceLocked(a.sink, numbers);
  second.relayLocked(a.source, b.sink);
  expect(await third.consumeLocked(b.source).first()).toEqual({ seen: numbers, isSound: true });
  for (const worker of [first, second, third]) expect((await worker.numSwaps().first()).onload).toBeGreaterThan(0);
});
