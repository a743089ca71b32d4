import { type DeviceSpec, PlacementMode, type Plan, TreadleError } from "@treadle/contracts";
import { resolvePlacement } from "@treadle/planner";
import fc from "fast-check";
import { expect, test } from "vitest";
import { adaptPlan } from "../../../src/runner/placement/adapt-plan.ts";
import type { PlacementFacts } from "../../../src/runner/placement/placement-facts.ts";

/** Nodes `n0`, `n1`, … that are there, each with so many CPU devices, numbered as a run numbers them. */
function devicesOf(present: readonly number[], perNode: number): DeviceSpec[] {
  return present.flatMap((node) =>
    Array.from({ length: perNode }, (_, i) => ({
      id: `n${node}/cpu:${i}`,
      index: node * perNode + i,
      node: `n${node}`,
      kind: "cpu",
      memoryBytes: 1e9,
    })),
  );
}

const facts = (devices: DeviceSpec[], over: Partial<PlacementFacts> = {}): PlacementFacts => ({
  components: [
    { name: "maker", ranks: { min: 1, max: 6 } },
    { name: "trainer", ranks: { fixed: 2 } },
  ],
  devices,
  batchItems: 16,
  granularity: "auto",
  maxStaleness: 0,
  ...over,
});
const elastic = new Set(["maker"]);
const ids = (plan: Plan, name: string): string[] => plan.components[name]?.ranks.flatMap((rank) => rank.devices) ?? [];
const numRanks = (plan: Plan, name: string): number => plan.components[name]?.ranks.length ?? 0;
const planOf = (mode: PlacementMode, of: PlacementFacts): Plan => resolvePlacement({ mode, ...of });

test("AD3: an elastic component takes what a new node brings and gives it back; the others stay where they are", () => {
  const small = planOf("spatial", facts(devicesOf([0], 4)));
  const grown = adaptPlan({ current: small, facts: facts(devicesOf([0, 1], 4)), elastic })?.plan as Plan;
  expect(numRanks(grown, "maker")).toBe(6);
  expect(ids(grown, "trainer")).toEqual(ids(small, "trainer"));
  expect(adaptPlan({ current: grown, facts: facts(devicesOf([0, 1], 4)), elastic })).toBeUndefined();
  const back = adaptPlan({ current: grown, facts: facts(devicesOf([0], 4)), elastic })?.plan as Plan;
  expect(numRanks(back, "maker")).toBe(2);
  expect(back.components["trainer"]).toEqual(small.components["trainer"]);
});

test("AD2: without elastic components only ranks of a node that leaves move, if there is room", () => {
  const two = facts(devicesOf([0, 1], 2), { components: [{ name: "maker" }, { name: "trainer" }] });
  const current = planOf("spatial", two);
  const left = adaptPlan({ current, facts: { ...two, devices: devicesOf([0], 2) }, elastic: new Set() })?.plan as Plan;
  for (const name of ["maker", "trainer"]) {
    expect(numRanks(left, name)).toBe(numRanks(current, name));
    expect(ids(left, name).every((id) => id.startsWith("n0/"))).toBe(true);
    for (const [i, rank] of current.components[name]?.ranks.entries() ?? []) {
      if (rank.node === "n0") expect(left.components[name]?.ranks[i]).toEqual(rank);
    }
  }
  const robots = devicesOf([0], 2).map((device) => ({
    ...device,
    kind: "robot",
    id: device.id.replace("cpu", "robot"),
  }));
  expect(adaptPlan({ current, facts: { ...two, devices: robots }, elastic: new Set() })).toBeUndefined();
  expect(adaptPlan({ current, facts: { ...two, devices: [] }, elastic: new Set() })).toBeUndefined();
});

test("AD1, AD2, AD3: whatever nodes come and go, counts keep their bounds and nobody is where nothing is", () => {
  const changes = fc.array(fc.uniqueArray(fc.integer({ min: 0, max: 4 }), { minLength: 1, maxLength: 4 }), {
    minLength: 1,
    maxLength: 6,
  });
  const counts = fc.record({
    perNode: fc.integer({ min: 1, max: 4 }),
    min: fc.integer({ min: 1, max: 2 }),
    more: fc.integer({ min: 0, max: 6 }),
    fixed: fc.integer({ min: 1, max: 3 }),
  });
  fc.assert(
    fc.property(
      fc.constantFrom(...PlacementMode.options),
      changes,
      counts,
      (mode, worlds, { perNode, min, more, fixed }) => {
        const components = [
          { name: "maker", ranks: { min, max: min + more } },
          { name: "trainer", ranks: { fixed } },
        ];
        let current: Plan | undefined;
        for (const nodes of worlds) {
          const here = facts(
            devicesOf(
              nodes.toSorted((a, b) => a - b),
              perNode,
            ),
            { components },
          );
          let best: Plan | undefined;
          try {
            best = planOf(mode, here);
          } catch (error) {
            expect((error as TreadleError).code).toBe("placement.impossible");
          }
          if (current === undefined) {
            current = best;
            continue;
          }
          try {
            current = adaptPlan({ current, facts: here, elastic })?.plan ?? current;
          } catch (error) {
            expect(error).toBeInstanceOf(TreadleError);
            expect(best).toBeUndefined(); // it gives up only where a plan made from nothing does
            continue;
          }
          const present = new Set(here.devices.map(({ id }) => id));
          const used = Object.keys(current.components).flatMap((name) => ids(current as Plan, name));
          expect(used.every((id) => present.has(id))).toBe(true);
          expect(numRanks(current, "trainer")).toBe(fixed);
          expect(numRanks(current, "maker")).toBeGreaterThanOrEqual(min);
          expect(numRanks(current, "maker")).toBeLessThanOrEqual(min + more);
          if (mode === "spatial")
            expect(ids(current, "maker").some((id) => ids(current as Plan, "trainer").includes(id))).toBe(false);
        }
      },
    ),
    { numRuns: 500 },
  );
});

test("AD1, AD2: ranks without devices leave a node that goes, stay where others grow, and make no room", () => {
  const components: PlacementFacts["components"] = [
    { name: "maker", ranks: { min: 1, max: 6 } },
    { name: "trainer", ranks: { fixed: 2 } },
    { name: "judge", devices: "none", ranks: { fixed: 2 } },
  ];
  const on = (nodes: readonly number[]) => facts(devicesOf(nodes, 4), { components });
  for (const mode of PlacementMode.options) {
    const small = planOf(mode, on([0]));
    const grown = adaptPlan({ current: small, facts: on([0, 1]), elastic })?.plan as Plan;
    expect(grown.components["judge"]).toEqual(small.components["judge"]);
    expect(numRanks(grown, "maker")).toBeGreaterThan(numRanks(small, "maker"));
    const left = adaptPlan({ current: grown, facts: on([1]), elastic })?.plan as Plan;
    expect(left.components["judge"]?.ranks).toEqual([0, 1].map(() => ({ node: "n1", devices: [] })));
    expect(adaptPlan({ current: left, facts: on([1]), elastic })).toBeUndefined();
  }
});
