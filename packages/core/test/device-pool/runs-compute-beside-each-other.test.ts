import type { PoolMember } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { DevicePoolState, type PoolEffect, type PoolInput, type SharingPolicy } from "../../src/index.ts";

const limits = { residents: 3, turnMs: 100, patienceMs: 1000, yieldMs: 500, beatLimitMs: 1_000_000 };
const member = (traits: Partial<PoolMember> = {}): PoolMember => ({
  ...{ priority: 0, weight: 1, share: "always", memoryPerDeviceMiB: 30 },
  devices: ["gpu:0", "gpu:1"].map((id) => ({ id, memoryMiB: 100 })),
  ...traits,
});

/** A pool of runs that share by a policy which says yes, unless it is told otherwise. */
function poolOf(
  runs: Readonly<Record<string, Partial<PoolMember>>>,
  policy: Partial<SharingPolicy> = {},
  oldToken = 0,
) {
  const usual = {
    version: 0,
    worked: () => {},
    gone: () => {},
    sharesNow: () => ({ shares: true, why: "always" }),
    slowdown: () => 1.5,
  };
  const state = new DevicePoolState(limits, oldToken, Object.assign(policy, { ...usual, ...policy }));
  const at = (nowMs: number, input: PoolInput): readonly PoolEffect[] => state.handle(input, nowMs);
  for (const [run, traits] of Object.entries(runs)) at(0, { type: "join", run, member: member(traits) });
  const ask = (nowMs: number, run: string, work: string | undefined = `${run}/train`, devices = ["gpu:0"]) =>
    at(nowMs, { type: "request", run, devices, work });
  const token = (run: string): number => state.leases.get(run)![0]!.token;
  const agree = (nowMs: number, run: string, work: string | null = `${run}/train`) =>
    at(nowMs, { type: "shares", run, token: token(run), work });
  const release = (nowMs: number, run: string) => at(nowMs, { type: "release", run, token: token(run) });
  /** `a` and `b` compute beside each other. */
  const shared = (nowMs: number) => {
    for (const run of ["a", "b"]) ask(nowMs, run);
    return agree(nowMs, "a");
  };
  return { state, at, ask, token, agree, release, shared };
}
const said = (effects: readonly PoolEffect[]) =>
  effects.map((effect) => {
    const more = effect.type === "beside" ? ` ${effect.works}` : effect.type === "wanted" ? ` ${effect.drains}` : "";
    return `${effect.type} ${effect.run}${more}`;
  });

describe("two runs on one device", () => {
  test("share it once the one that has it has agreed, each for one work, until either is gone (PD2, PD10)", () => {
    const { ask, agree, release, state } = poolOf({ a: {}, b: {} });
    ask(0, "a");
    expect(said(ask(1, "b"))).toEqual(["share a", "wanted a false"]);
    const joined = agree(2, "a");
    expect(said(joined)).toEqual(["granted b", "beside a b/train", "beside b a/train"]);
    expect(joined[0]).toMatchObject({ lease: { devices: ["gpu:0"], only: "b/train" } });
    expect([...state.leases.keys()]).toEqual(["a", "b"]);
    expect(said(release(3, "b"))).toEqual(["beside a "]);
    expect(said(ask(4, "b"))).toEqual(["share a"]);
  });

  test("does not come about without a policy, or a work, or where either keeps its devices for itself (PD2, PD10)", () => {
    const alone = new DevicePoolState(limits);
    const at = (input: PoolInput) => said(alone.handle(input, 0));
    for (const run of ["a", "b"]) at({ type: "join", run, member: member() });
    at({ type: "request", run: "a", devices: ["gpu:0"], work: "a/train" });
    expect(at({ type: "request", run: "b", devices: ["gpu:0"], work: "b/train" })).toEqual(["wanted a false"]);
    for (const [first, second] of [
      ["always", "idle"],
      ["idle", "always"],
    ] as const) {
      const { ask } = poolOf({ a: { share: first }, b: { share: second } });
      ask(0, "a");
      expect(said(ask(0, "b"))).toEqual(["wanted a false"]);
    }
    const { at: to, ask } = poolOf({ a: {}, b: {} });
    ask(0, "a");
    expect(said(to(0, { type: "request", run: "b", devices: ["gpu:0"] }))).toEqual(["wanted a false"]);
  });

  test("a third one waits for its turn, and a set of devices is shared whole (PD3, PD5, PD10)", () => {
    const { ask, shared, at, state } = poolOf({ a: {}, b: {}, c: {} });
    shared(0);
    expect(said(ask(1, "c", "c/train", ["gpu:0", "gpu:1"]))).toEqual(["wanted b false"]);
    // What was agreed for one serves the next.
    const left = at(2, { type: "release", run: "b", token: state.leases.get("b")![0]!.token });
    expect(said(left)).toEqual(["granted c", "beside a c/train", "beside c a/train"]);
  });

  test("that cannot say what computes is not asked again before it can, and nothing is agreed for nobody (PD10)", () => {
    const { ask, agree, at, token } = poolOf({ a: {}, b: {} });
    ask(0, "a");
    ask(1, "b");
    expect(said(agree(2, "a", null))).toEqual([]);
    expect(said(at(3, { type: "uses", run: "a", token: token("a"), work: "a/rollout" }))).toEqual(["share a"]);
    at(4, { type: "gone", run: "b" });
    expect(said(agree(5, "a", "a/rollout"))).toEqual(["beside a "]);
  });

  test("is what the policy says, asked again when it has learnt something or others compute (PD10)", () => {
    let asked: string[] = [];
    const policy = {
      version: 0,
      sharesNow: ({ waiter, holders, running, waiting }: Parameters<SharingPolicy["sharesNow"]>[0]) => {
        asked.push(`${waiter.work} ${holders[0]!.work} ${holders[0]!.memory} ${running.length} ${waiting.length}`);
        return { shares: policy.version > 0, why: `version ${policy.version}` };
      },
    };
    const { ask, at, token } = poolOf({ a: {}, b: {} }, policy);
    ask(0, "a");
    ask(1, "b");
    at(2, { type: "tick" });
    expect(asked).toEqual(["b/train a/train 0.3 1 0"]);
    at(3, { type: "uses", run: "a", token: token("a"), work: "a/rollout" });
    expect(asked.at(-1)).toBe("b/train a/rollout 0.3 1 0");
    asked = [];
    at(4, { type: "tick" });
    expect(asked).toEqual([]);
    policy.version = 1;
    expect(said(at(5, { type: "tick" }))).toEqual(["share a"]);
    expect(asked).toEqual(["b/train a/rollout 0.3 1 0"]);
  });

  test("what one loses beside the other counts as waiting, and beyond its bound the other yields (PD6, PD8, PD10)", () => {
    const { shared, state, at, ask } = poolOf({ a: { maxSlowdown: 1.25 }, b: {} });
    shared(0);
    // At 1.5 times, a third of the time is lost; alone the bound would give a fifth.
    at(300, { type: "tick" });
    const [a] = state.view(299.9 + 0.2);
    expect(a?.lostMs).toBeCloseTo(100, 0);
    expect(a?.slowdown).toBeCloseTo(1.5, 2);
    expect(state.view(300.1)[1]?.holds?.drains).toBe(true);
    const { token } = state.leases.get("b")![0]!;
    expect(said(at(301, { type: "release", run: "b", token }))).toEqual(["beside a "]);
    expect(said(ask(302, "b"))).toEqual([]);
    expect(state.view(302)[1]?.waits?.on).toEqual({ type: "bounds", runs: ["a"] });
    // 100 ms lost need 500 in all at that bound.
    expect(said(at(520, { type: "tick" }))).toContain("share a");
  });

  test("a tick comes when a bound is reached by what is lost, and not before (PD8)", () => {
    const { shared, state, at } = poolOf({ a: { maxSlowdown: 1.6 }, b: {} }, { slowdown: () => 2 });
    shared(0);
    const nextMs = Math.min(state.nextTickMs(150), 1e9);
    at(nextMs, { type: "tick" });
    expect(state.nextTickMs(0)).toBeGreaterThan(0);
    expect(state.view(nextMs)[0]?.slowdown).toBeCloseTo(2, 1);
  });

  test("a pool that changes hands believes both, where each says that it computes one work (PD9, PD10)", () => {
    const restore = (run: string): PoolInput => ({
      ...{ type: "restore", run, member: member() },
      memoryMiB: { "gpu:0": 30, "gpu:1": 30 },
    });
    const again = (run: string, token: number, only?: string): PoolInput => ({
      ...{ type: "join", run, member: member() },
      leases: [{ token, devices: ["gpu:0"], ...(only === undefined ? {} : { only }) }],
    });
    const { at } = poolOf({}, {}, 100);
    for (const run of ["a", "b", "c"]) at(0, restore(run));
    expect(said(at(1, again("a", 7, "a/train")))).toEqual(["admitted a"]);
    expect(said(at(2, again("b", 8, "b/train")))).toEqual(["admitted b", "beside a b/train", "beside b a/train"]);
    expect(said(at(3, again("c", 9)))).toEqual(["end c"]);
  });

  test("a run that says `never` is alone on its devices, from its admission to its end (PD1)", () => {
    const { at } = poolOf({ a: {} });
    expect(said(at(1, { type: "join", run: "b", member: member({ share: "never" }) }))).toEqual([]);
    expect(said(at(2, { type: "join", run: "c", member: member() }))).toEqual([]);
    expect(said(at(3, { type: "gone", run: "a" }))).toEqual(["admitted b"]);
    expect(said(at(4, { type: "gone", run: "b" }))).toEqual(["admitted c"]);
  });
});
