/** Worker groups that are launched, and ended, between the steps of a run (RLinf §3.5). */
import { afterEach, expect, test } from "vitest";
import { isAlive, pidOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { ProbeWorker } from "../support/workers/probe.ts";

let world: TestCluster;
afterEach(() => world.close());

const launch = (name: string, ranks: number) =>
  world.cluster.launch(ProbeWorker, { greeting: name }, { name, ranks: { fixed: ranks } });

test("one joins while another computes, moves nobody, ends, and its name may be used again", async () => {
  world = await startCluster({ cluster: { devices: 2 } });
  const first = launch("first", 2);
  const before = await first.whoAmI();
  const slow = first.wait([700, 700]);
  const second = launch("second", 1);
  const [joined] = await second.whoAmI();
  expect(joined).toMatchObject({ component: "second", rank: 0, worldSize: 1, config: { greeting: "second" } });
  await slow;
  expect((await first.whoAmI()).map(({ pid }) => pid)).toEqual(before.map(({ pid }) => pid));
  expect(Object.keys(world.cluster.place().components)).toEqual(["first", "second"]);

  await world.cluster.end(second);
  await until(() => !isAlive(joined?.pid as number), "the process to end");
  expect(Object.keys(world.cluster.place().components)).toEqual(["first"]);
  expect(() => second.whoAmI()).toThrow("'second.whoAmI' was called after the group had ended");

  const third = launch("second", 2);
  const again = await third.whoAmI();
  expect(again.map(({ rank, worldSize }) => [rank, worldSize])).toEqual([
    [0, 2],
    [1, 2],
  ]);
  expect(again[0]?.pid).not.toBe(joined?.pid);
  expect((await first.whoAmI()).map(({ pid }) => pid)).toEqual(before.map(({ pid }) => pid));
  expect(world.cluster.restarts).toBe(0);
  expect(world.events.filter(({ type }) => type === "plan")).toHaveLength(4);
});

test("a process of a group that joined is replaced like any other's", async () => {
  world = await startCluster({ cluster: { devices: 1 } });
  await launch("first", 1).whoAmI();
  const second = launch("second", 1);
  await second.whoAmI();
  const pid = pidOf(world.events, "second/0");
  process.kill(pid, "SIGKILL");
  await until(() => !isAlive(pid), "the process to end");
  const [again] = await second.whoAmI();
  expect(again?.pid).not.toBe(pid);
  expect(world.cluster.restarts).toBe(1);
});

test("what cannot be ended or placed is refused, and the run goes on", async () => {
  world = await startCluster({ cluster: { devices: 1 } });
  const first = launch("first", 1);
  await expect(world.cluster.end(first)).rejects.toThrow("no group of that name runs");
  const call = first.wait([300]);
  await expect(world.cluster.end(first)).rejects.toThrow("while a call is open");
  await call;
  const wide = { name: "second", devicesPerRank: 4 };
  expect(() => world.cluster.launch(ProbeWorker, {}, wide)).toThrow(
    expect.objectContaining({ code: "placement.impossible" }),
  );
  const second = launch("second", 1);
  await second.whoAmI();
  await world.cluster.end(second);
  await expect(world.cluster.end(second)).rejects.toThrow("this run has first");
  expect(await first.whoAmI()).toHaveLength(1);
});
