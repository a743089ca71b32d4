import { TreadleError } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { createGroup, describeGroup, groupRef } from "../../src/author/group/group.ts";
import { CallHandle, type RankReply } from "../../src/author/group/handle.ts";

const reply = <R>(value: R, durationMs = 1000, timers = {}): Promise<RankReply<R>> =>
  Promise.resolve({ value, durationMs, timers });
const handleOf = (ranks: readonly number[], replies: Promise<RankReply<unknown>>[]) =>
  new CallHandle("actor.train", ranks, replies, () => {});

describe("a handle", () => {
  test("gives results in the order of the ranks it was called on", async () => {
    const handle = handleOf([4, 2], [reply("four"), reply("two")]);
    expect(await handle).toEqual(["four", "two"]);
    expect(await handle.first()).toBe("four");
    expect(await handle.onRanks(2, 4)).toEqual(["two", "four"]);
    await expect(handle.onRanks(0)).rejects.toThrow("it was called on ranks 4, 2");
  });

  test("reduces durations and timers; a rank without a timer counts as 0", async () => {
    const handle = handleOf(
      [0, 1, 2],
      [reply(0, 1000, { decode: 500 }), reply(1, 3000, { decode: 1500 }), reply(2, 2000)],
    );
    expect(await handle.seconds()).toEqual([1, 3, 2]);
    expect(await handle.reducedSeconds()).toBe(3);
    expect(await handle.reducedSeconds("min")).toBe(1);
    expect(await handle.reducedSeconds("mean")).toBe(2);
    expect(await handle.reducedSeconds("max", "decode")).toBe(1.5);
    expect(await handle.reducedSeconds("min", "decode")).toBe(0);
  });

  test("that nobody awaits raises no unhandled rejection, and can be awaited later", async () => {
    const seen: unknown[] = [];
    const listener = (reason: unknown) => seen.push(reason);
    process.on("unhandledRejection", listener);
    const boom = new TreadleError("call.failed", "boom");
    const handle = handleOf([0, 1], [Promise.reject(boom), reply(1)]);
    await new Promise((resolve) => setTimeout(resolve, 20));
    process.off("unhandledRejection", listener);
    expect(seen).toEqual([]);
    await expect(Promise.resolve(handle)).rejects.toBe(boom);
    expect(await handle.onRanks(1)).toEqual([1]);
  });

  test("passes a cancellation on with its reason", () => {
    const reasons: TreadleError[] = [];
    new CallHandle("actor.train", [0], [reply(0)], (reason) => reasons.push(reason)).cancel("for a test");
    expect(reasons).toMatchObject([{ code: "call.cancelled", message: "'actor.train' was cancelled for a test" }]);
  });
});

describe("a group", () => {
  const calls: { ranks: readonly number[] | undefined; method: string; args: readonly unknown[] }[] = [];
  type Methods = { work(a: number): Promise<void> };
  const group = createGroup<Methods>({ name: "actor", size: 3, methods: ["work"] }, (ranks, method, args) => {
    calls.push({ ranks, method, args });
    return handleOf([0], [reply(0)]);
  });

  test("has the methods of its class, on all ranks or on some", () => {
    group.work(1);
    group.onRanks(2, 0).work(2);
    expect(calls).toEqual([
      { ranks: undefined, method: "work", args: [1] },
      { ranks: [2, 0], method: "work", args: [2] },
    ]);
    expect([group.groupName, group.size, group.onRanks(1).size]).toEqual(["actor", 3, 1]);
  });

  test("travels as a reference, with its restriction", () => {
    const restricted = describeGroup(group.onRanks(1));
    expect(restricted && groupRef(restricted)).toEqual({ $group: "actor", size: 3, methods: ["work"], ranks: [1] });
    const whole = describeGroup(group);
    expect(whole && groupRef(whole)).toEqual({ $group: "actor", size: 3, methods: ["work"] });
    expect(describeGroup({ name: "actor" })).toBeUndefined();
    expect(describeGroup("actor")).toBeUndefined();
  });
});
