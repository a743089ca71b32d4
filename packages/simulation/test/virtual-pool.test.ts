import { CpuManager, defaultDecideOptions } from "@treadle/actions/state-machines";
import { expect, test, vi } from "vitest";
import { type VirtualAction, VirtualPool } from "../src/actions/virtual-pool.ts";
import { EventQueue } from "../src/event-queue.ts";

function setUp(cores: readonly number[]) {
  const queue = new EventQueue();
  const nodes = cores.map((num, i) => ({
    id: `n${i}`,
    numa: [Array.from({ length: num }, (_, core) => core)],
    memoryBytes: 2 ** 30,
  }));
  const manager = new CpuManager({ nodes, trajectoryMemoryBytes: 2 ** 20 });
  const pools = vi.spyOn(manager, "pools");
  const pool = new VirtualPool(queue, manager, defaultDecideOptions);
  pools.mockClear();
  const endedMs: Record<string, number> = {};
  /** Of one core, for so many seconds; `looks` counts the decisions that saw it. */
  const action = (id: string, trajectory: string, seconds: number): VirtualAction & { looks: number } => {
    const made = {
      looks: 0,
      queued: () => {
        made.looks++;
        return { id, demands: [["cpu", 1]] as const, elastic: undefined, seconds };
      },
      request: { actionId: id, trajectory, minimum: 1 },
      secondsOn: () => seconds,
      ended: () => {
        endedMs[id] = queue.nowMs;
      },
    };
    return made;
  };
  const drain = () => {
    while (queue.runNext()) {}
  };
  return { queue, manager, pool, pools, action, drain, endedMs };
}

test("VP1: what comes at one time to one node is decided about once, and apart from other nodes", () => {
  const { pool, pools, action, drain, queue, manager, endedMs } = setUp([3, 3]);
  for (const trajectory of ["here", "there"]) manager.bind({ actionId: "first", trajectory, minimum: 1 });
  expect(manager.home("here")).not.toBe(manager.home("there"));
  const here = ["a", "b", "c"].map((id) => action(id, "here", 1));
  for (const each of here) pool.submit(each);
  expect(here.map(({ looks }) => looks)).toEqual([0, 0, 0]);
  queue.runNext();
  expect(here.map(({ looks }) => looks)).toEqual([1, 1, 1]);
  expect(pools).toHaveBeenCalledTimes(1);
  // The other node is busy for longer than this one: what ends here is no reason to look at what waits there.
  const there = ["d", "e", "f", "g"].map((id) => action(id, "there", 10));
  for (const each of there) pool.submit(each);
  queue.runNext();
  const looks = there.map((each) => each.looks);
  while (queue.nowMs < 5000 && Object.keys(endedMs).length < 3) queue.runNext();
  expect(there.map((each) => each.looks)).toEqual(looks);
  drain();
  expect(endedMs).toEqual({ a: 1000, b: 1000, c: 1000, d: 10_000, e: 10_000, f: 10_000, g: 20_000 });
});

test("VP2: nothing is decided where nothing is free, and whoever waits is looked at when something has ended", () => {
  const { pool, action, drain, queue, endedMs } = setUp([1]);
  pool.submit(action("first", "t", 2));
  queue.runNext();
  const waiting = action("second", "t", 1);
  pool.submit(waiting);
  queue.runNext();
  expect([queue.nowMs, waiting.looks]).toEqual([0, 0]);
  drain();
  expect(waiting.looks).toBe(1);
  expect(endedMs).toEqual({ first: 2000, second: 3000 });
});
