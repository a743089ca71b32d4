import { type DeviceSpec, PlacementMode } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { type PlacementInput, planFromProfile, resolvePlacement, solvePlan } from "../src/index.ts";
import { chainProfile, cluster } from "./synthetic-profile.ts";

const devices: DeviceSpec[] = [0, 1, 2, 3].map((index) => ({
  ...{ id: `cpu:${index}`, index, node: "here", kind: "cpu", memoryBytes: 2 ** 30 },
}));
const input = (over: Partial<PlacementInput> = {}): PlacementInput => ({
  mode: "temporal",
  components: [{ name: "rollout" }, { name: "actor" }],
  devices,
  maxStaleness: 0,
  ...over,
});
type Placed = Pick<ReturnType<typeof resolvePlacement>, "components">;
const ranksOf = (plan: Placed, name = "rollout") => plan.components[name]!.ranks.map((rank) => rank.devices.length);

describe("no more ranks than so many of a component", () => {
  test("have a device each where it does not say how many a rank spans, in every mode", () => {
    for (const mode of PlacementMode.options) {
      expect(ranksOf(resolvePlacement(input({ mode, wishes: { maxRanks: { rollout: 1 } } })))).toEqual([1]);
      const wider = [{ name: "rollout", devicesPerRank: 2 }, { name: "actor" }];
      const plan = resolvePlacement(input({ mode, components: wider, wishes: { maxRanks: { rollout: 1 } } }));
      expect(ranksOf(plan)).toEqual([2]);
    }
    const three = resolvePlacement(input({ wishes: { maxRanks: { rollout: 3 } } }));
    expect(ranksOf(three)).toEqual([1, 1, 1]);
    expect(three.explanation.join()).toContain("'rollout' leaves cpu:3 idle");
    const asked = [{ name: "rollout", ranks: { fixed: 1 } }, { name: "actor" }];
    expect(ranksOf(resolvePlacement(input({ components: asked, wishes: { maxRanks: { rollout: 1 } } })))).toEqual([1]);
  });

  test("leave in spatial mode to the others what they do not use", () => {
    const plan = resolvePlacement(
      input({ mode: "spatial", wishes: { maxRanks: { rollout: 1 }, useAllDevices: true } }),
    );
    expect([ranksOf(plan), ranksOf(plan, "actor")]).toEqual([[1], [1, 1, 1]]);
  });

  test("span what placement.components says they do", () => {
    const wishes = { maxRanks: { rollout: 1 } };
    const place = (rollout: string) =>
      resolvePlacement(input({ mode: "hybrid", explicit: { rollout, actor: "all" }, wishes }));
    expect(ranksOf(place("0-3 /4"))).toEqual([4]);
    expect(ranksOf(place("0-3"))).toEqual([1]);
    expect(() => place("0-3 /2")).toThrow("'rollout' would have 2 ranks, but it allows exactly 1");
    expect(() => place("0 x2")).toThrow("'rollout' would have 2 ranks, but it allows exactly 1");
  });

  test("are the same to the search, to every plan from a profile, and to what is said of it", () => {
    const profile = chainProfile({ rollout: { perItem: 4 }, actor: { perItem: 1 } }, 8, [1, 2, 4]);
    const target = { ...input(), batch: 8 };
    const found = planFromProfile(profile, { ...target, wishes: { maxRanks: { rollout: 1 } } });
    for (const { plan, placement, mode } of found.alternatives) {
      expect(ranksOf(plan)).toEqual([1]);
      if (mode !== "temporal") expect(placement["rollout"]).toMatch(/^\d$/);
    }
    const said =
      "'rollout' has '1' rank, as many as maxRanks allows; raise it to let a plan give it more of the 4 devices";
    expect(found.explanation).toContain(said);
    const nodes = [
      { id: "rollout", time: { type: "formula", perItem: 4 }, maxRanks: 1 },
      { id: "actor", time: { type: "formula", perItem: 1 } },
    ];
    const problem = { devices: 4, batch: 8, nodes, edges: [["rollout", "actor"]] };
    for (const method of ["fast", "naive"]) {
      const answer = solvePlan(problem, { method });
      expect(answer.explanation).toContain(said);
      expect(answer.time).toBeCloseTo(
        solvePlan({ ...problem, nodes: [{ ...nodes[0], maxDevices: 1 }, nodes[1]] }).time!,
        9,
      );
    }
    expect(found.predicted.stepSeconds).toBeGreaterThanOrEqual(4 * 8); // all items of a step on one device
  });

  test("are named where they are why nothing fits", () => {
    const memory = { fixed: 0, sharded: 8, perItem: 0 };
    const nodes = (maxRanks: number) => [
      { id: "rollout", time: { type: "formula", perItem: 1 }, memory, maxRanks },
      { id: "actor", time: { type: "formula", perItem: 1 } },
    ];
    const solve = (memoryPerDevice: number, maxRanks: number, wishes = {}) =>
      solvePlan({
        ...{ devices: 4, batch: 8, memoryPerDevice, nodes: nodes(maxRanks), edges: [["rollout", "actor"]] },
        ...wishes,
      });
    const [said] = solve(4, 1).explanation;
    expect(said).toContain("'rollout' needs more than the 4 of memory a device has");
    expect(said).toContain("raise maxRanks, which is '1' for 'rollout': with more ranks it would fit");
    expect(solve(4, 2).feasible).toBe(true);
    expect(solve(1, 1).explanation[0]).toContain("give it more devices, shard it, or allow smaller granularities");
    const wishes = { useAll: true, apart: [["rollout", "actor"]], modes: ["temporal"] };
    expect(solve(8, 1, wishes).feasible).toBe(false);
  });
});

test("a plan whose wide ranks do not all fit the nodes is predicted with those that do, and is not proven", () => {
  const profile = chainProfile({ gen: { perItem: 20, devicesPerRank: 3 }, train: { perItem: 5 } }, 24, [3, 6]);
  const components = [{ name: "gen", devicesPerRank: 3 }, { name: "train" }];
  const devices = cluster(8).map((device) => ({ ...device, node: `n${Math.floor(device.index / 4)}` }));
  for (const maxStaleness of [0, 1]) {
    const { alternatives } = planFromProfile(profile, { devices, batch: 24, maxStaleness, components });
    const spatial = alternatives.find(({ mode }) => mode === "spatial")!;
    const { ranks } = spatial.plan.components["gen"]!;
    // A run of six devices reaches to the middle of the second node.
    expect(ranks).toHaveLength(1);
    expect(spatial.stepSeconds).toBeGreaterThan((24 * 20) / 3 - 1);
    expect(spatial.proven).toBe(false);
  }
});

test("components are called as they are", () => {
  const profile = chainProfile({ constructor: { perItem: 1 }, toString: { perItem: 1 } }, 24);
  const asked = { devices: cluster(4), batch: 24, maxStaleness: 0, wishes: { maxRanks: { toString: 2 } } };
  const { plan } = planFromProfile(profile, {
    ...asked,
    components: [{ name: "constructor" }, { name: "toString" }],
  });
  expect(plan.components["toString"]!.ranks).toHaveLength(2);
});
