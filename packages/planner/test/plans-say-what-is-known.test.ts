import { describe, expect, test } from "vitest";
import { planFromProfile } from "../src/index.ts";
import { chainProfile, cluster } from "./synthetic-profile.ts";

const planModes = ["temporal", "spatial", "hybrid"] as const;
const named = (names: readonly string[] = ["rollout", "inference", "actor"]) => names.map((name) => ({ name }));
const plain = { batch: 64, maxStaleness: 0 };

describe("what is proven", () => {
  const names = ["a", "b", "c", "d", "e"];
  const profile = chainProfile(Object.fromEntries(names.map((name, i) => [name, { perItem: i + 1, base: 0.1 }])));
  const asked = { devices: cluster(64), ...plain, components: named(names) };

  test("is said of each mode by the search that found it, and of none that was cut short, which has a bound", () => {
    for (const { proven, boundSeconds, stepSeconds } of planFromProfile(profile, asked).alternatives) {
      expect(proven).toBe(true);
      expect(boundSeconds).toBeLessThanOrEqual(stepSeconds);
    }
    let nowMs = 0;
    const hurried = planFromProfile(profile, { ...asked, deadlineMs: 1, nowMs: () => (nowMs += 0.5) });
    expect(hurried.alternatives.some(({ proven }) => !proven)).toBe(true);
    for (const { proven, boundSeconds, stepSeconds } of hurried.alternatives) {
      if (proven) continue;
      expect(boundSeconds).toBeGreaterThan(0);
      expect(boundSeconds).toBeLessThan(stepSeconds);
    }
  });

  test("is not said of modes whose search the deadline cut short: of these the time is what is told", () => {
    let numMissing = 0;
    for (const readings of [0, 3, 10, 100]) {
      let nowMs = 0;
      const deadline = { deadlineMs: readings, nowMs: () => nowMs++ };
      const { alternatives, missing } = planFromProfile(profile, { ...asked, ...deadline });
      expect([...alternatives, ...missing].map(({ mode }) => mode).toSorted()).toEqual([...planModes].toSorted());
      numMissing += missing.length;
      for (const { mode, why } of missing) {
        expect(why).toContain(`the time for the search ran out before a ${mode} schedule was found`);
        expect(why).toContain("give the search a longer deadline");
      }
    }
    expect(numMissing).toBeGreaterThan(0);
    let nowMs = 0;
    const none = { deadlineMs: 0, nowMs: () => nowMs++, wishes: { modes: ["hybrid" as const] } };
    expect(() => planFromProfile(profile, { ...asked, ...none })).toThrow(
      /^no plan was found: the time .* longer deadline$/,
    );
  });

  test("is said of modes that have none, and those that nobody asked for are told from them", () => {
    const few = planFromProfile(profile, { ...asked, devices: cluster(4) });
    expect(few.missing).toContainEqual({ mode: "spatial", why: "no plan of this mode is possible" });
    const { missing } = planFromProfile(profile, { ...asked, wishes: { modes: ["temporal"] } });
    expect(missing).toContainEqual({ mode: "spatial", why: "not asked for: placement.wishes.modes is 'temporal'" });
  });

  test("is not said of plans whose devices were tried one number after the other", () => {
    const wishes = { together: [["a", "c"]], apart: [["a", "b"]] };
    const { alternatives, explanation } = planFromProfile(profile, { ...asked, wishes });
    expect(explanation.join()).toContain(
      "'a' and 'c' were pinned to the same devices, of which some numbers were tried",
    );
    expect(alternatives.map(({ proven }) => proven)).not.toContain(true);
  });
});

describe("what a plan says of itself", () => {
  const profile = chainProfile({ rollout: { perItem: 4 }, inference: { perItem: 1 }, actor: { perItem: 2 } }, 79);
  const asked = { devices: cluster(4), components: named(), batch: 79, maxStaleness: 0 };

  test("is that nothing is proven of it where a larger batch was searched for, with what no plan is below", () => {
    const { alternatives, explanation, plan } = planFromProfile(profile, asked);
    expect(alternatives[0]).toMatchObject({ proven: false });
    const said = explanation.filter((line) => line.startsWith("not proven to be the best: no plan takes less than "));
    expect(said).toHaveLength(1);
    expect(plan.explanation).toContain(said[0]);
    const whole = { ...asked, batch: 64 };
    expect(planFromProfile(profile, whole).explanation.join()).not.toContain("not proven");
  });

  test("is of the devices and items that it has, not of those that were searched for", () => {
    const { alternatives } = planFromProfile(profile, { ...asked, wishes: { maxRanks: { rollout: 1, actor: 1 } } });
    const searched = planFromProfile(profile, {
      ...asked,
      ...{ batch: 64, wishes: { maxRanks: { rollout: 1, actor: 1 } } },
    });
    for (const { plan, limits, stepSeconds, timeline } of alternatives) {
      const [, name, part, devices] = /^'(.+)' is the busiest: it computes for (\d+) % of a step, on (\d+) device/.exec(
        limits.find((line) => line.includes("is the busiest")) ?? "",
      ) as RegExpExecArray;
      const held = new Set(plan.components[name!]!.ranks.flatMap((rank) => rank.devices)).size;
      expect(Number(devices)).toBe(held);
      const drawn = timeline.lanes.flatMap(({ segments }) =>
        segments.filter(({ component, kind }) => kind === "run" && component === name),
      );
      const seconds = drawn.reduce((sum, each) => sum + (each.endSeconds - each.startSeconds) * each.busyShare, 0);
      expect(Number(part) / 100).toBeCloseTo(seconds / stepSeconds, 1);
    }
    for (const { plan, limits } of searched.alternatives)
      for (const [, name, devices] of limits.join().matchAll(/'(\w+)' on (\d+)/g)) {
        const held = new Set(plan.components[name!]!.ranks.flatMap((rank) => rank.devices)).size;
        expect(Number(devices), limits.join()).toBe(held);
      }
  });

  test("is that time ran out while devices and chunks were refined", () => {
    const cutShort = /the time for the search ran out before devices and chunks of its plans were all refined/;
    expect(planFromProfile(profile, asked).explanation.join()).not.toMatch(cutShort);
    let readings = 0;
    planFromProfile(profile, { ...asked, deadlineMs: 1, nowMs: () => 0 * readings++ });
    let left = readings - 1; // a clock that stands still until all but the last look at it
    const hurried = planFromProfile(profile, { ...asked, deadlineMs: 1, nowMs: () => (left-- > 0 ? 0 : 2) });
    expect(hurried.explanation.join()).toMatch(cutShort);
  });
});

test("who may not have more devices is told by the key that says so", () => {
  const profile = chainProfile({ rollout: { perItem: 4 }, inference: { perItem: 1 }, actor: { perItem: 2 } });
  const limitOf = (asked: Partial<Parameters<typeof planFromProfile>[1]>) => {
    const { moreDevices } = planFromProfile(profile, { devices: cluster(8), ...plain, components: named(), ...asked });
    return moreDevices.flatMap(({ atMost }) => atMost);
  };
  expect(limitOf({ pinned: { rollout: "0-1" } })).toContainEqual({ name: "rollout", by: "placement.components" });
  expect(limitOf({ wishes: { maxRanks: { rollout: 1 }, modes: ["spatial"] } })).toContainEqual({
    name: "rollout",
    by: "placement.wishes.maxRanks",
  });
  const [rollout, ...others] = named();
  const limited = [{ ...rollout!, ranks: { max: 1 } }, ...others];
  expect(limitOf({ components: limited, wishes: { modes: ["spatial"] } })).toContainEqual({
    name: "rollout",
    by: "ranks.max",
  });
});

test("the share that a bottleneck has is of the time that a step is predicted to take, what it takes besides included", () => {
  const profile = chainProfile({ a: { perItem: 0.4, base: 0.1 }, b: { perItem: 0.2 }, c: { perItem: 0.1 } });
  let numShares = 0;
  for (const overheadSeconds of [0, 2, 20]) {
    const asked = { devices: cluster(8), ...plain, components: named(["a", "b", "c"]) };
    for (const { limits, stepSeconds } of planFromProfile({ ...profile, overheadSeconds }, asked).alternatives) {
      for (const limit of limits) {
        const pipeline = limit.match(/: (\d+) chunks? of ([\d.]+) s are (\d+) % of the time; (.*)/);
        if (!pipeline) continue;
        const [, chunks, seconds, share, others = ""] = pipeline;
        expect(Number(share) / 100).toBeCloseTo((Number(chunks) * Number(seconds)) / stepSeconds, 1.7);
        for (const [, waited] of others.matchAll(/waits (\d+) % of it/g))
          expect(Number(waited)).toBeLessThanOrEqual(Number(share) + 1); // no longer than the bottleneck computes
        numShares++;
        break; // what is within another is told of one of its chunks
      }
      for (const limit of limits) expect(limit).not.toMatch(/\d{3,} % of/);
    }
  }
  expect(numShares).toBe(3); // of the spatial plans
});
