import { type DeviceSpec, PlacementMode, Plan, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  layoutOf,
  type NearestPlacement,
  type PlacementComponent,
  type PlacementInput,
  planFromProfile,
  predictPlan,
  resolvePlacement,
  withWishes,
} from "../src/index.ts";
import { chainProfile } from "./synthetic-profile.ts";

function cluster(count: number, nodes = 1, kind = "cpu"): DeviceSpec[] {
  return Array.from({ length: count }, (_, index) => ({
    id: `${kind}:${index}`,
    index,
    node: `node-${Math.floor((index * nodes) / count)}`,
    kind,
    memoryBytes: 2 ** 34,
  }));
}

const input = (overrides: Partial<PlacementInput> = {}): PlacementInput => ({
  mode: "temporal",
  components: [{ name: "rollout" }, { name: "actor" }, { name: "judge", devices: "none" }],
  devices: cluster(4),
  maxStaleness: 0,
  ...overrides,
});

/** The plan, or the code of the refusal. */
function placed(given: PlacementInput): Plan | string {
  try {
    return resolvePlacement(given);
  } catch (error) {
    if (error instanceof TreadleError) return error.code;
    throw error;
  }
}

const ranksOf = (plan: Plan, name: string) => plan.components[name]!.ranks;

const component = fc.record(
  {
    ranks: fc.record({ min: fc.integer({ min: 1, max: 3 }), max: fc.integer({ min: 3, max: 6 }) }),
    devicesPerRank: fc.integer({ min: 1, max: 3 }),
    weight: fc.integer({ min: 1, max: 5 }),
    deviceKind: fc.constantFrom("cpu", "robot"),
  },
  { requiredKeys: [] },
);

describe("a component without devices", () => {
  test("WD1: leaves the others what they have without it, in every mode, wherever it stands", () => {
    const shapes = fc.record({
      mode: fc.constantFrom(...PlacementMode.options),
      others: fc.array(component, { minLength: 1, maxLength: 4 }),
      at: fc.nat(4),
      ranks: fc.integer({ min: 1, max: 5 }),
      devices: fc.integer({ min: 1, max: 12 }),
      nodes: fc.integer({ min: 1, max: 3 }),
      robots: fc.integer({ min: 0, max: 3 }),
      batchItems: fc.option(fc.integer({ min: 1, max: 64 }), { nil: undefined }),
    });
    let numPlaced = 0;
    fc.assert(
      fc.property(shapes, ({ mode, others, at, ranks, devices, nodes, robots, batchItems }) => {
        const components: PlacementComponent[] = others.map((each, i) => ({ name: `c${i}`, ...each }));
        const judge: PlacementComponent = { name: "judge", devices: "none", ranks: { min: ranks } };
        const here = [...cluster(devices, Math.min(nodes, devices)), ...cluster(robots, 1, "robot")];
        const common = { mode, devices: here, ...(batchItems === undefined ? {} : { batchItems }) };
        const before = placed(input({ ...common, components }));
        const after = placed(input({ ...common, components: components.toSpliced(at, 0, judge) }));
        if (typeof before === "string" || typeof after === "string") {
          expect(after).toBe(before);
          return;
        }
        numPlaced++;
        const { judge: own, ...rest } = after.components;
        expect(rest).toEqual(before.components);
        expect({ ...after, components: rest, explanation: [] }).toEqual({ ...before, explanation: [] });
        expect(own!.ranks.map((rank) => rank.devices)).toEqual(Array.from({ length: ranks }, () => []));
        expect(own!.ranks.every(({ node }) => here.some((device) => device.node === node))).toBe(true);
        expect(Plan.parse(after)).toEqual(after);
      }),
      { numRuns: 300 },
    );
    expect(numPlaced).toBeGreaterThan(50);
  });

  test("costs spatial placement nothing, and the plan says so", () => {
    const plan = resolvePlacement(input({ mode: "spatial", devices: cluster(2) }));
    expect(ranksOf(plan, "rollout")).toHaveLength(1);
    expect(ranksOf(plan, "actor")).toHaveLength(1);
    expect(plan.explanation[0]).toBe("spatial: rollout on cpu 0; actor on cpu 1; judge on no devices");
    const withDevice = input({
      mode: "spatial",
      devices: cluster(2),
      components: ["a", "b", "c"].map((name) => ({ name })),
    });
    expect(placed(withDevice)).toBe("placement.impossible");
  });

  test("may be written as 'none' in placement.components, which leaves the others to the mode", () => {
    const components = ["rollout", "actor", "judge"].map((name) => ({ name, memoryBytesPerDevice: 1, weight: 2 }));
    const alone = resolvePlacement(input({ mode: "hybrid", components, explicit: { judge: "none x3" } }));
    expect(ranksOf(alone, "judge").map(({ devices }) => devices)).toEqual([[], [], []]);
    expect(ranksOf(alone, "rollout")[0]!.devices).toEqual(["cpu:0"]);
    const both = resolvePlacement(input({ explicit: { "rollout,actor": "0-1", judge: "none" }, components }));
    expect(ranksOf(both, "judge")).toHaveLength(1);
    expect(ranksOf(both, "actor").flatMap(({ devices }) => devices)).toEqual(["cpu:0", "cpu:1"]);
  });

  test("is placed by placement.components where that names it, whatever it was launched with", () => {
    const plan = resolvePlacement(input({ explicit: { "rollout,actor": "0-1", judge: "2" }, mode: "hybrid" }));
    expect(ranksOf(plan, "judge").map(({ devices }) => devices)).toEqual([["cpu:2"]]);
    const others = resolvePlacement(input({ explicit: { rollout: "0-1", actor: "2-3" }, mode: "spatial" }));
    expect(ranksOf(others, "judge").map(({ devices }) => devices)).toEqual([[]]);
  });

  test.each([
    [{ explicit: { judge: "none /2" } }, "expected 'x' or the end, found '/'"],
    [{ explicit: { judge: "none,0" } }, "expected 'x' or the end, found ','"],
    [{ explicit: { judge: "none x0" } }, "asks for 0"],
    [{ explicit: { juge: "none" } }, "did you mean 'judge'?"],
    [{ explicit: { judge: "none", "rollout,judge": "0" } }, "a second time"],
    [{ explicit: { rollout: "0" } }, "does not place 'actor'"],
    [{ explicit: { rollout: "9", actor: "0" } }, "names device 9"],
    [{ wishes: { together: [["judge", "actor"]] } }, "'judge', which has no devices to share"],
  ])("refuses %j with what is wrong", (overrides, reason) => {
    // Ten ranks, so that a slot has the number of a device that is not there.
    const components = [
      { name: "rollout" },
      { name: "actor" },
      { name: "judge", devices: "none" as const, ranks: { min: 10 } },
    ];
    expect(() => resolvePlacement(input({ components, ...overrides }))).toThrow(reason);
  });

  test("has no more ranks than it allows", () => {
    const components = [{ name: "rollout" }, { name: "judge", ranks: { max: 2 } }];
    expect(() => resolvePlacement(input({ components, explicit: { judge: "none x3" } }))).toThrow("it allows 1 to 2");
  });

  test("stands in the nearest placement that a refusal names, which works as it is written", () => {
    const components: PlacementComponent[] = [{ name: "a" }, { name: "b" }, { name: "judge", ranks: { min: 2 } }];
    const wrong = input({ mode: "spatial", components, explicit: { "a,b": "0-1", judge: "none" } });
    let nearest: NearestPlacement | undefined;
    try {
      resolvePlacement(wrong);
    } catch (error) {
      nearest = (error as TreadleError).details?.["nearest"] as NearestPlacement;
    }
    expect(nearest).toEqual({ mode: "spatial", components: { a: "0", b: "1", judge: "none x2" } });
    const plan = resolvePlacement({ ...wrong, mode: nearest!.mode, explicit: { ...nearest!.components } });
    expect(ranksOf(plan, "judge")).toHaveLength(2);
  });

  test("WD2: has none in any plan that is found by its profile, and is cheaper than one that has some", () => {
    const costs = { base: 0, perItem: 1, alpha: 0 };
    const profile = chainProfile({ rollout: costs, judge: { base: 0, perItem: 0.5, alpha: 0 }, actor: costs });
    const target = { devices: cluster(2), batch: 64, maxStaleness: 0 };
    const named = (judge: Partial<PlacementComponent>) =>
      ["rollout", "judge", "actor"].map((name): PlacementComponent => ({ name, ...(name === "judge" ? judge : {}) }));
    const components = named({ devices: "none" });
    const without = planFromProfile(profile, { ...target, components });
    for (const { plan, placement, timeline, stepSeconds } of without.alternatives) {
      expect(ranksOf(plan, "judge").map(({ devices }) => devices)).toEqual([[]]);
      expect(placement["judge"]).toBe("none");
      expect(timeline.lanes.map(({ label }) => label)).toContain("processes of judge 0");
      expect(predictPlan(profile, plan, { ...target, components })).toBeCloseTo(stepSeconds, 6);
      const again = resolvePlacement({
        ...input(),
        mode: plan.mode,
        components,
        devices: target.devices,
        explicit: { ...placement },
      });
      expect(again.components).toEqual(plan.components);
    }
    expect(without.alternatives.map(({ mode }) => mode)).toContain("spatial");
    const having = planFromProfile(profile, { ...target, components: named({}) });
    expect(without.predicted.stepSeconds).toBeLessThan(having.predicted.stepSeconds);
  });

  test("counts as one device for each rank where times are measured", () => {
    const plan = resolvePlacement(input({ explicit: { judge: "none x3" } }));
    expect(layoutOf(plan).components.get("judge")).toEqual({ devices: 3, ranks: 3, isOnProcessors: true });
    expect(layoutOf(plan).devices).toBe(4);
  });
});

test("devices that are to stay free are taken away once, however often that is asked", () => {
  const once = withWishes({ ...input(), wishes: { freeDevices: "0", maxRanks: { rollout: 2 } } });
  expect(once.devices.map(({ index }) => index)).toEqual([1, 2, 3]);
  expect(withWishes(once)).toEqual(once);
});
