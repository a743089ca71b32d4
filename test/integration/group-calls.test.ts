import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import type { WorkerGroup } from "@treadle/runtime";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startCluster, type TestCluster, until } from "../support/cluster.ts";
import { openSavedState } from "../support/saved-state.ts";
import { ProbeWorker, SlowlySavingWorker } from "../support/workers/probe.ts";

let test3: TestCluster;
let probe: WorkerGroup<ProbeWorker>;
let other: WorkerGroup<ProbeWorker>;
let saving: WorkerGroup<SlowlySavingWorker>;

beforeAll(async () => {
  test3 = await startCluster({ cluster: { devices: 3 }, placement: { mode: "temporal" } });
  const { cluster } = test3;
  probe = await cluster.launch(ProbeWorker, { greeting: "hi" }, { ranks: { fixed: 3 }, env: { PROBE_FLAG: "mine" } });
  other = await cluster.launch(ProbeWorker, {}, { name: "other", ranks: { fixed: 1 } });
  saving = await cluster.launch(SlowlySavingWorker, {}, { name: "saving", ranks: { fixed: 1 } });
  await cluster.start();
});
afterAll(() => test3.close());

test("each rank knows who it is, its run and node, its configuration, its devices and its environment", async () => {
  const all = await probe.whoAmI();
  expect(all.map(({ rank }) => rank)).toEqual([0, 1, 2]);
  const { runId } = test3;
  for (const each of all) {
    expect(each).toMatchObject({
      runId,
      node: "node:0",
      component: "probe",
      worldSize: 3,
      config: { greeting: "hi" },
      flag: "mine",
    });
    expect(each.devices).toEqual([`cpu:${each.rank}`]);
  }
  expect(new Set(all.map(({ pid }) => pid)).size).toBe(3);
  expect((await other.whoAmI())[0]?.flag).toBeUndefined();
  expect([probe.size, other.size]).toEqual([3, 1]);
});

test("results come in the order of the ranks, whoever is first; durations and timers are reduced over them", async () => {
  const handle = probe.wait([150, 10, 60]);
  expect(await handle).toEqual([0, 1, 2]);
  const seconds = await handle.seconds();
  expect(await handle.reducedSeconds("max")).toBe(Math.max(...seconds));
  expect(await handle.reducedSeconds("min")).toBe(Math.min(...seconds));
  expect(await handle.reducedSeconds("mean")).toBeCloseTo(seconds.reduce((a, b) => a + b) / 3, 10);
  expect(seconds[0] as number).toBeGreaterThan(seconds[1] as number);
  const waiting = await handle.reducedSeconds("max", "waiting");
  expect(waiting).toBeGreaterThan(0);
  expect(waiting).toBeLessThanOrEqual(await handle.reducedSeconds("max"));
  expect(await handle.reducedSeconds("max", "no such timer")).toBe(0);
});

test("a call on some ranks answers for those, and one rank's result does not wait for the others", async () => {
  expect(await probe.onRanks(2, 0).wait([1, 1, 1])).toEqual([2, 0]);
  const slow = probe.wait([1, 1, 2000]);
  let isOver = false;
  void slow.then(() => (isOver = true));
  expect(await slow.onRanks(1)).toEqual([1]);
  expect(await slow.first()).toBe(0);
  expect(isOver).toBe(false);
  await slow;
  await expect(probe.onRanks(1).wait([1, 1, 1]).onRanks(2)).rejects.toMatchObject({ code: "workflow.invalid" });
});

test("WH1: calls of one rank run one after the other, in the order in which they were made", async () => {
  const first = other.wait([200]);
  const second = other.wait([1]);
  let isFirstOver = false;
  void first.then(() => (isFirstOver = true));
  await second;
  expect(isFirstOver).toBe(true);
});

test("WH4: when a call that changes state has been answered, that state is saved", async () => {
  const folder = join(test3.folder, "state");
  for (const [num, text] of ["one", "two"].entries()) {
    await saving.note(text);
    const files = (await readdir(folder)).filter((name) => name.startsWith("saving."));
    expect(files).toHaveLength(num + 1);
    const states = await Promise.all(
      files.map(async (name) => (await openSavedState(join(folder, name))).text("notes")),
    );
    expect(states).toContain(["one", "one,two"][num]);
  }
});

test("a cancelled call rejects with call.cancelled everywhere, and its workers take further calls", async () => {
  const handle = probe.hang();
  await probe.onRanks(0).size;
  handle.cancel("by this test");
  await expect(Promise.resolve(handle)).rejects.toMatchObject({ code: "call.cancelled" });
  expect(await probe.wait([1, 1, 1])).toEqual([0, 1, 2]);
  expect(test3.cluster.failure).toBeUndefined();
});

describe("a call that fails because of a peer", () => {
  test("RK1, WH5: is made again before the calls behind it, which wait for it", async () => {
    const flaky = other.flaky(2);
    const noted = other.note("behind it");
    await flaky;
    expect(await noted.first()).toEqual(["flaky", "flaky", "flaky", "behind it"]);
    await other.forget();
  });

  test("and lets them go on when it is cancelled meanwhile", async () => {
    const flaky = other.flaky(1);
    const noted = other.note("behind it");
    await new Promise((resolve) => setTimeout(resolve, 100));
    flaky.cancel();
    await expect(Promise.resolve(flaky)).rejects.toMatchObject({ code: "call.cancelled" });
    expect((await noted.first()).at(-1)).toBe("behind it");
    await other.forget();
    expect(test3.cluster.failure).toBeUndefined();
  });
});

test("WH1: workers call one another's groups, whole and restricted, also while they run a call themselves", async () => {
  expect(await other.through(probe)).toEqual([[0, 1, 2]]);
  expect(await other.through(probe.onRanks(1))).toEqual([[1]]);
  expect(await other.through(other)).toEqual([[0]]);
  expect(await probe.through(probe)).toEqual([0, 1, 2].map(() => [0, 1, 2]));
});

describe("messages", () => {
  test("every rank to every rank, itself included: in order per tag, with their types", async () => {
    const seen = await probe.exchange();
    for (const rank of [0, 1, 2]) {
      expect(seen[rank]).toEqual(
        [2, 1, 0].flatMap((from) => [
          `${from}>probe/${rank} 3 Float32Array 0 -`,
          `${from}>probe/${rank} 1 Float32Array 2 0.5`,
          `${from}>probe/${rank} 2 Float32Array 70000 ${from}`,
        ]),
      );
    }
  });

  test("broadcast, gather and allReduceSum over the ranks of a group, twice", async () => {
    for (let round = 0; round < 2; round++) {
      const all = await probe.collect();
      expect(all.map(({ told }) => told)).toEqual([{ from: 1 }, { from: 1 }, { from: 1 }]);
      expect(all.map(({ gathered }) => gathered)).toEqual([["r0", "r1", "r2"], undefined, undefined]);
      for (const { sum } of all) expect(sum).toEqual(Float32Array.of(3, 3));
    }
  });

  test("between groups", async () => {
    const answered = other.answer("probe/1");
    const [greeting] = await probe.onRanks(1).greet("other/0");
    expect(greeting).toBe("hello from probe/1, and hello from other/0");
    await answered;
  });
});

test("spans of every worker arrive, and each has a log file", async () => {
  await probe.trace();
  await until(() => {
    const text = JSON.stringify(test3.spans);
    return ["probe/0", "probe/1", "probe/2", "decode"].every((name) => text.includes(name));
  }, "spans of all ranks");
  for (const name of ["probe-0", "probe-1", "probe-2", "other-0"]) {
    const log = await until(async () => {
      const text = await readFile(join(test3.folder, `${name}.log`), "utf8").catch(() => "");
      return text.includes("set up as") && (name === "other-0" || text.includes("a line of its own"))
        ? text
        : undefined;
    }, `the log of ${name}`);
    expect(log).toContain(name.replace("-", "/"));
  }
});

test("S1: what a method throws arrives with worker, method, node, cause and stack, also through another worker", async () => {
  const error = await probe.fail(1).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(TreadleError);
  const { code, message, origin, cause } = error as TreadleError;
  expect(code).toBe("call.failed");
  expect(message).toBe("'fail' of 'probe/1' threw: the cup is empty");
  expect(origin).toMatchObject({ worker: "probe/1", method: "fail", node: "node:0" });
  expect((cause as Error).message).toBe("the cup is empty");
  expect((cause as Error).stack).toContain("probe.ts");
  expect(((cause as Error).cause as Error).message).toBe("it leaks");
  expect(await test3.failure).toBe(error); // the first failure is the run's
  await expect(Promise.resolve(other.failThrough(probe))).rejects.toMatchObject({
    code: "call.failed",
    origin: { worker: "probe/0", method: "fail" },
  });
  expect(test3.cluster.failure).toBe(error);
});
