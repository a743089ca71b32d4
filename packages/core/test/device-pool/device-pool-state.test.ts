import type { PoolMember } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { DevicePoolState, type PoolEffect, type PoolInput } from "../../src/index.ts";

const limits = { residents: 2, turnMs: 100, patienceMs: 1000, yieldMs: 50, beatLimitMs: 1_000_000 };

/** A pool of two devices of 100 MiB, and runs of priority 0 unless a name begins with "high". */
function poolOf(...runs: string[]) {
  const state = new DevicePoolState({ ...limits, residents: Math.max(2, runs.length) });
  const at = (nowMs: number, input: PoolInput): readonly PoolEffect[] => state.handle(input, nowMs);
  for (const run of runs) at(0, join(run, { priority: run.startsWith("high") ? 1 : 0 }));
  const ask = (nowMs: number, run: string, devices = ["gpu:0"]) => at(nowMs, { type: "request", run, devices });
  const token = (run: string): number => state.leases.get(run)![0]!.token;
  const release = (nowMs: number, run: string) => at(nowMs, { type: "release", run, token: token(run) });
  return { state, at, ask, token, release };
}

function join(run: string, member: Partial<PoolMember> = {}): PoolInput {
  const devices = ["gpu:0", "gpu:1"].map((id) => ({ id, memoryMiB: 100 }));
  return { type: "join", run, member: { priority: 0, weight: 1, devices, ...member } };
}

const granted = (effects: readonly PoolEffect[]): string[] =>
  effects.flatMap((effect) => (effect.type === "granted" ? [effect.run] : []));
const refusal = (effects: readonly PoolEffect[]): string[] =>
  effects.flatMap((effect) => (effect.type === "refused" ? [effect.why] : []));
const wanted = (effects: readonly PoolEffect[]) =>
  effects.flatMap((effect) => (effect.type === "wanted" ? [[effect.run, effect.drains]] : []));

describe("the device pool", () => {
  test("admits as many runs as may reside on a device; the next one comes when nothing of one is left (PD1)", () => {
    const state = new DevicePoolState(limits);
    expect(state.handle(join("a"), 0)).toEqual([
      { type: "admitted", run: "a", memoryMiB: { "gpu:0": 50, "gpu:1": 50 } },
    ]);
    expect(state.handle(join("b", { memoryPerDeviceMiB: 51 }), 0)).toEqual([]);
    expect(state.handle(join("c", { memoryPerDeviceMiB: 20 }), 0)).toEqual([]);
    expect(state.queue(0)).toEqual(["b", "c"]);
    expect(state.handle({ type: "gone", run: "a" }, 1)).toMatchObject([
      { type: "admitted", run: "b", memoryMiB: { "gpu:0": 51 } },
      { type: "admitted", run: "c" },
    ]);
  });

  test("leases a device to one run at a time, and the whole set or nothing (PD2, PD3)", () => {
    const { ask, release } = poolOf("a", "both", "late");
    expect(granted(ask(0, "a"))).toEqual(["a"]);
    expect(granted(ask(1, "both", ["gpu:0", "gpu:1"]))).toEqual([]);
    expect(granted(ask(2, "late", ["gpu:1"]))).toEqual([]);
    expect(granted(release(3, "a"))).toEqual(["both"]);
    expect(granted(release(4, "both"))).toEqual(["late"]);
  });

  test("a run has leases of several sets of devices, each of which it yields by itself (PD2, PD3, PD6)", () => {
    const { at, ask, state } = poolOf("a", "b");
    expect(granted(ask(0, "a", ["gpu:0"]))).toEqual(["a"]);
    expect(granted(ask(1, "b", ["gpu:1"]))).toEqual(["b"]);
    // Each wants what the other has, and gives back what it has: nobody waits for ever.
    expect(at(2, { type: "request", run: "a", devices: ["gpu:1"] })).toEqual([
      { type: "wanted", run: "b", token: 2, drains: false },
    ]);
    expect(at(3, { type: "request", run: "b", devices: ["gpu:0"] })).toEqual([
      { type: "wanted", run: "a", token: 1, drains: false },
    ]);
    expect(granted(at(4, { type: "release", run: "b", token: 2 }))).toEqual(["a"]);
    expect(state.leases.get("a")?.map(({ devices }) => devices)).toEqual([["gpu:0"], ["gpu:1"]]);
    expect(granted(at(5, { type: "release", run: "a", token: 1 }))).toEqual(["b"]);
    expect(state.view(6).map(({ holds }) => holds?.devices)).toEqual([["gpu:1"], ["gpu:0"]]);
  });

  test("a token holds until it is released, and never again (PD4)", () => {
    const { at, ask, token } = poolOf("a");
    ask(0, "a");
    const first = token("a");
    at(1, { type: "release", run: "a", token: first });
    expect(refusal(at(2, { type: "release", run: "a", token: first }))).toEqual([`token '${first}' is not current`]);
    ask(3, "a");
    expect(token("a")).toBeGreaterThan(first);
  });

  test("nobody asks for what it holds or waits for already, nor for devices that it did not join with (PD3)", () => {
    const { at, ask } = poolOf("a", "b");
    ask(0, "a");
    ask(0, "b");
    expect(refusal(ask(1, "a", ["gpu:1", "gpu:0"]))[0]).toContain("it holds lease '1'");
    expect(refusal(ask(1, "b", ["gpu:1", "gpu:0"]))).toEqual(["it waits for a lease of these already"]);
    at(1, { type: "gone", run: "b" });
    expect(refusal(ask(1, "b"))).toEqual(["the run is not in the pool"]);
    at(1, join("c"));
    expect(refusal(ask(2, "c", ["gpu:7"]))).toEqual([
      "device 'gpu:7' is not among those that it joined with: gpu:0, gpu:1",
    ]);
  });

  test("a holder hears at once that others wait, and drains when its turn is over, longer by its weight (PD6)", () => {
    const { at, ask } = poolOf("b");
    at(0, join("a", { weight: 3 }));
    ask(0, "a");
    expect(wanted(ask(10, "b"))).toEqual([["a", false]]);
    expect(wanted(at(299, { type: "tick" }))).toEqual([]);
    expect(wanted(at(300, { type: "tick" }))).toEqual([["a", true]]);
    expect(wanted(at(310, { type: "tick" }))).toEqual([]);
  });

  test("a larger priority goes first and makes a holder drain at once (PD5, PD6)", () => {
    const { ask, release } = poolOf("a", "b", "high");
    ask(0, "a");
    ask(1, "b");
    expect(wanted(ask(2, "high"))).toEqual([["a", true]]);
    expect(granted(release(3, "a"))).toEqual(["high"]);
  });

  test("whoever has waited for long enough is not overtaken by a larger priority any more (PD5, PD6)", () => {
    const { at, ask, release } = poolOf("a", "b", "high");
    at(0, { type: "beat", run: "a" });
    ask(0, "high");
    ask(1, "b");
    expect(wanted(at(1001, { type: "tick" }))).toEqual([["high", true]]);
    ask(1002, "a");
    expect(granted(release(1003, "high"))).toEqual(["b"]);
    ask(1004, "high");
    expect(granted(release(1005, "b"))).toEqual(["high"]);
  });

  test("a run that does not yield in time is ended by name, and others wait until nothing of it is left (PD2, PD6)", () => {
    const { at, ask, state } = poolOf("a", "b");
    ask(0, "a");
    ask(1, "b");
    expect(at(100, { type: "tick" })).toMatchObject([{ type: "wanted", run: "a", drains: true }]);
    expect(state.nextTickMs(100)).toBe(150);
    const why = "run 'a' was told to yield its devices, and has not within 50 ms";
    expect(at(150, { type: "tick" })).toEqual([{ type: "end", run: "a", why }]);
    expect([...state.leases.keys()]).toEqual([]);
    expect(refusal(at(151, { type: "release", run: "a", token: 1 }))).toEqual(["the run is being ended"]);
    expect(granted(at(200, { type: "tick" }))).toEqual([]);
    expect(granted(at(201, { type: "gone", run: "a" }))).toEqual(["b"]);
  });

  test("nobody drains in vain, for a request that a larger priority keeps waiting (PD6)", () => {
    const { ask } = poolOf("high", "b", "c");
    ask(0, "high");
    ask(0, "b", ["gpu:1"]);
    expect(wanted(ask(1, "c", ["gpu:0", "gpu:1"]))).toEqual([
      ["high", false],
      ["b", false],
    ]);
  });

  test("a run whose beats stay out is ended; others keep theirs (PD7)", () => {
    const state = new DevicePoolState({ ...limits, beatLimitMs: 50 });
    for (const run of ["a", "b"]) state.handle(join(run), 0);
    state.handle({ type: "request", run: "b", devices: ["gpu:1"] }, 0);
    state.handle({ type: "beat", run: "b" }, 40);
    expect(state.nextTickMs(40)).toBe(50);
    expect(state.handle({ type: "tick" }, 50)).toEqual([
      { type: "end", run: "a", why: "run 'a' gave no sign of life for 50 ms" },
    ]);
    expect([...state.leases.keys()]).toEqual(["b"]);
  });

  test("says who has what, who waits for whom and why, and how much slower each is than alone (PD5, PD8)", () => {
    const { at, ask, release, state } = poolOf();
    at(0, join("bounded", { maxSlowdown: 2 }));
    at(0, join("b"));
    at(0, join("c"));
    ask(0, "b");
    ask(0, "bounded", ["gpu:0", "gpu:1"]);
    const seen = (nowMs: number) =>
      state.view(nowMs).map(({ run, stage, holds, waits, slowdown }) => [run, stage, holds?.forMs, waits, slowdown]);
    expect(seen(40)).toEqual([
      ["bounded", "resident", undefined, { forMs: 40, on: { type: "devices", runs: ["b"] } }, undefined],
      ["b", "resident", 40, undefined, 1],
      ["c", "queued", undefined, { forMs: 40, on: { type: "room", runs: ["bounded", "b"], place: 1 } }, undefined],
    ]);
    release(60, "b");
    ask(60, "b", ["gpu:1"]);
    expect(seen(80).slice(0, 2)).toEqual([
      ["bounded", "resident", 20, undefined, 4],
      ["b", "resident", undefined, { forMs: 20, on: { type: "bounds", runs: ["bounded"] } }, 80 / 60],
    ]);
  });

  test("a run at its bound goes before a larger priority, makes others drain, and keeps its devices for a while (PD8)", () => {
    const state = new DevicePoolState({ ...limits, residents: 3 });
    const ask = (nowMs: number, run: string) => state.handle({ type: "request", run, devices: ["gpu:0"] }, nowMs);
    const release = (nowMs: number, run: string) =>
      state.handle({ type: "release", run, token: state.leases.get(run)![0]!.token }, nowMs);
    state.handle(join("bounded", { maxSlowdown: 1.5 }), 0);
    state.handle(join("high", { priority: 9 }), 0);
    state.handle(join("higher", { priority: 10 }), 0);
    ask(20, "high");
    expect(wanted(ask(30, "bounded"))).toEqual([["high", false]]);
    // After 30 ms without a wait it may wait for 15.
    expect(state.nextTickMs(30)).toBe(46);
    expect(wanted(state.handle({ type: "tick" }, 45))).toEqual([]);
    expect(wanted(state.handle({ type: "tick" }, 46))).toEqual([["high", true]]);
    ask(47, "higher");
    expect(granted(release(50, "high"))).toEqual(["bounded"]);
    // It has waited for 20, so it needs 40 without a wait: until 60.
    expect(granted(release(55, "bounded"))).toEqual([]);
    expect(state.nextTickMs(55)).toBeCloseTo(61, 9);
    expect(granted(state.handle({ type: "tick" }, 61))).toEqual(["higher"]);
  });

  test("what can never be is refused at once, with what is missing (PD1)", () => {
    const { at, state } = poolOf("a");
    expect(refusal(at(0, join("b", { memoryPerDeviceMiB: 130 })))).toEqual([
      "device 'gpu:0' has 100 MiB, '30' less than pool.memoryPerDeviceMiB of run 'b' asks for (130); lower it",
    ]);
    expect(refusal(at(0, join("a")))).toEqual(["a run called 'a' is in the pool; give each a name of its own"]);
    expect(state.queue(0)).toEqual([]);
  });
});
