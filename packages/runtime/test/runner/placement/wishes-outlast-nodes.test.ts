import { type DeviceSpec, PlacementMode, type PlacementWishes, type Plan, TreadleError } from "@treadle/contracts";
import { resolvePlacement, withWishes } from "@treadle/planner";
import fc from "fast-check";
import { expect, test } from "vitest";
import { adaptPlan } from "../../../src/runner/placement/adapt-plan.ts";
import { joinPlan } from "../../../src/runner/placement/join-plan.ts";
import type { PlacementFacts } from "../../../src/runner/placement/placement-facts.ts";

const nodes = [0, 1, 2, 3];
const deviceOf = (node: number, i: number, perNode: number): DeviceSpec => ({
  ...{ id: `n${node}/cpu:${i}`, index: node * perNode + i, node: `n${node}`, kind: "cpu", memoryBytes: 1e9 },
});
const all = (perNode: number): DeviceSpec[] =>
  nodes.flatMap((node) => Array.from({ length: perNode }, (_, i) => deviceOf(node, i, perNode)));

const facts = (present: readonly number[], perNode: number, over: Partial<PlacementFacts>): PlacementFacts => ({
  components: ["maker", "judge", "trainer"].map((name) => ({ name })),
  devices: all(perNode).filter(({ node }) => present.some((number) => node === `n${number}`)),
  numbered: all(perNode),
  maxStaleness: 0,
  ...over,
});
const devicesOf = (plan: Plan, name: string): string[] => plan.components[name]!.ranks.flatMap((rank) => rank.devices);
const share = (plan: Plan, a: string, b: string): boolean =>
  devicesOf(plan, a).some((id) => devicesOf(plan, b).includes(id));

test("AD4: what must stay free stays free when its number, or its node, means another device than before", () => {
  for (const freeDevices of ["3", "node[1].1", "node(n1).1", "group(back).1"]) {
    const over = { wishes: { freeDevices }, nodeGroups: { back: [1] } };
    const current = resolvePlacement({ mode: "spatial", ...facts([0, 1, 2], 2, over) });
    for (const elastic of [new Set<string>(), new Set(["maker"])]) {
      // One device is left for three that grow apart, and three for those that stay as they are.
      const present = elastic.size > 0 ? [1, 2] : [1];
      const left = adaptPlan({ current, facts: facts(present, 2, over), elastic })?.plan as Plan;
      for (const name of Object.keys(left.components)) expect(devicesOf(left, name)).not.toContain("n1/cpu:1");
      const other = adaptPlan({ current, facts: facts([2, 3], 2, over), elastic })?.plan as Plan;
      expect(new Set(Object.keys(other.components).flatMap((name) => devicesOf(other, name))).size).toBeGreaterThan(2);
    }
  }
});

test("AD4: a rank finds no place beside what it is to be apart from, and stays where it was", () => {
  const wishes = { apart: [["maker", "trainer"]] };
  const over = { components: [{ name: "maker" }, { name: "trainer" }], wishes };
  const current = resolvePlacement({ mode: "spatial", ...facts([0, 1], 1, over) });
  expect(adaptPlan({ current, facts: facts([1], 1, over), elastic: new Set() })).toBeUndefined();
  const roomy = adaptPlan({ current, facts: facts([1, 2], 1, over), elastic: new Set() })?.plan as Plan;
  expect(share(roomy, "maker", "trainer")).toBe(false);
});

test("AD5: a wish that what is left can keep is kept, and one that it cannot is named", () => {
  const together = { wishes: { together: [["judge", "trainer"]] } };
  const current = resolvePlacement({ mode: "hybrid", ...facts([0, 1, 2], 2, together) });
  const left = adaptPlan({ current, facts: facts([1, 2], 2, together), elastic: new Set() });
  expect(new Set(devicesOf(left!.plan, "judge"))).toEqual(new Set(devicesOf(left!.plan, "trainer")));
  expect(left?.why).toHaveLength(1);
  const over = { wishes: { useAllDevices: true, maxRanks: { maker: 1, judge: 1, trainer: 1 } } };
  const spread = resolvePlacement({ mode: "spatial", ...facts([0, 1, 2], 1, over) });
  const fewer = adaptPlan({ current: spread, facts: facts([1, 2], 2, over), elastic: new Set() });
  expect(fewer?.plan.components["maker"]?.ranks).toHaveLength(1);
  expect(fewer?.why.at(-1)).toMatch(/placement.wishes is not kept on the nodes that are left: it leaves cpu \d idle/);
});

test("AD2, AD4: wishes about components that are not elastic do not move them when an elastic one grows", () => {
  const over: Partial<PlacementFacts> = {
    components: [
      { name: "maker", ranks: { min: 1, max: 4 } },
      { name: "judge" },
      { name: "trainer", ranks: { fixed: 1 } },
    ],
    wishes: { apart: [["maker", "trainer"]], freeDevices: "0" },
  };
  const small = resolvePlacement({ mode: "spatial", ...facts([0, 1], 2, over) });
  const grown = adaptPlan({ current: small, facts: facts([0, 1, 2, 3], 2, over), elastic: new Set(["maker"]) });
  expect(grown?.plan.components["trainer"]).toEqual(small.components["trainer"]);
  expect(grown?.plan.components["maker"]?.ranks).toHaveLength(4);
});

const names = ["maker", "judge", "trainer"];
const pair = fc.uniqueArray(fc.constantFrom(...names), { minLength: 2, maxLength: 2 });
const anyWishes: fc.Arbitrary<PlacementWishes> = fc.record(
  {
    modes: fc.uniqueArray(fc.constantFrom(...PlacementMode.options), { minLength: 1, maxLength: 3 }),
    useAllDevices: fc.boolean(),
    freeDevices: fc.constantFrom("0", "1-2", "node[1].all", "node(n2).0", "node[0].0,node[3].0"),
    maxRanks: fc.record(
      { maker: fc.integer({ min: 1, max: 3 }), judge: fc.integer({ min: 1, max: 2 }) },
      { requiredKeys: [] },
    ),
    together: fc.array(pair, { minLength: 1, maxLength: 1 }),
    apart: fc.array(pair, { minLength: 1, maxLength: 2 }),
  },
  { requiredKeys: [] },
);
const worlds = fc.array(fc.uniqueArray(fc.constantFrom(...nodes), { minLength: 1, maxLength: 4 }), {
  minLength: 1,
  maxLength: 6,
});

test("AD1, AD2, AD4, AD5: whatever is wished for and whatever nodes go, plans keep it, or say which wish is not kept", () => {
  let [adapted, kept] = [0, 0];
  fc.assert(
    fc.property(
      fc.constantFrom(...PlacementMode.options),
      anyWishes,
      worlds,
      fc.integer({ min: 1, max: 3 }),
      fc.boolean(),
      (mode, wishes, losses, perNode, isElastic) => {
        const components = [
          { name: "maker", ranks: { min: 1 } },
          { name: "judge" },
          { name: "trainer", ranks: { fixed: 1 } },
        ];
        const over = { wishes, components };
        const elastic = new Set(isElastic ? ["maker"] : []);
        let current: Plan;
        try {
          current = resolvePlacement({ mode, ...facts(nodes, perNode, over) });
        } catch (error) {
          expect(error).toBeInstanceOf(TreadleError); // contradictions, and what the mode cannot keep
          return;
        }
        const free = idsOutside(withWishes(facts(nodes, perNode, over)).devices, perNode);
        for (const present of losses) {
          const here = facts(present, perNode, over);
          const before = current;
          const change = attempt(() => adaptPlan({ current, facts: here, elastic }));
          if (change === undefined) continue;
          adapted++;
          const plan = change.plan;
          const there = new Set(here.devices.map(({ id }) => id));
          for (const name of names) {
            const ranks = plan.components[name]!.ranks;
            expect(devicesOf(plan, name).filter((id) => free.has(id))).toEqual([]);
            expect(ranks.length).toBeLessThanOrEqual(wishes.maxRanks?.[name] ?? Number.POSITIVE_INFINITY);
            if (!elastic.has(name)) expect(ranks.length).toBe(before.components[name]!.ranks.length);
          }
          for (const group of wishes.apart ?? []) {
            const [a, b] = group as [string, string];
            if (!share(before, a, b)) expect(share(plan, a, b)).toBe(false);
          }
          // The oracle knows nothing of how plans are adapted: it reads the wishes.
          const missed = softWishesMissed(
            plan,
            wishes,
            [...there].filter((id) => !free.has(id)),
          );
          if (missed.length > 0) expect(change.why.join()).toContain("is not kept on the nodes that are left");
          else kept++;
          current = plan;
        }
      },
    ),
    { numRuns: 800 },
  );
  expect(kept).toBeGreaterThan(adapted / 3);
});

function attempt<T>(act: () => T): T | undefined {
  try {
    return act();
  } catch (error) {
    expect(error).toBeInstanceOf(TreadleError);
    expect((error as TreadleError).code).toMatch(/^placement\./);
    return undefined;
  }
}

function idsOutside(usable: readonly DeviceSpec[], perNode: number): ReadonlySet<string> {
  const ids = new Set(usable.map(({ id }) => id));
  return new Set(all(perNode).flatMap(({ id }) => (ids.has(id) ? [] : [id])));
}

function softWishesMissed(
  plan: Plan,
  { useAllDevices, together = [] }: PlacementWishes,
  usable: readonly string[],
): string[] {
  const used = new Set(names.flatMap((name) => devicesOf(plan, name)));
  const missed = useAllDevices === true && usable.some((id) => !used.has(id)) ? ["useAllDevices"] : [];
  for (const [a, b] of together as [string, string][]) {
    const [few, many] = [devicesOf(plan, a), devicesOf(plan, b)].sort((x, y) => new Set(x).size - new Set(y).size) as [
      string[],
      string[],
    ];
    if (few.some((id) => !many.includes(id))) missed.push("together");
  }
  return missed;
}

test("a component that is launched while others run keeps the wishes that it can, whatever its mode", () => {
  const running = (wishes: PlacementWishes) =>
    facts([0, 1], 2, { components: [{ name: "maker" }, { name: "trainer" }], wishes });
  const joining = (wishes: PlacementWishes, mode: PlacementMode) => {
    const current = resolvePlacement({ mode, ...running({}) });
    const components = [...running({}).components, { name: "judge" }];
    return joinPlan({ current, facts: { ...running(wishes), components }, name: "judge" });
  };
  const apart = joining({ apart: [["judge", "trainer"]], modes: ["spatial"] }, "spatial");
  expect(share(apart, "judge", "trainer")).toBe(false);
  expect(share(apart, "judge", "maker")).toBe(true);
  const together = joining({ together: [["judge", "trainer"]] }, "spatial");
  expect(devicesOf(together, "judge")).toEqual(devicesOf(together, "trainer"));
  expect(devicesOf(joining({ freeDevices: "0-1" }, "temporal"), "judge")).toEqual(["n1/cpu:0", "n1/cpu:1"]);
  expect(joining({ maxRanks: { judge: 1 } }, "temporal").components["judge"]?.ranks).toHaveLength(1);
  expect(() => joining({ apart: [["judge", "trainer"]] }, "temporal")).toThrow(
    "no device is left for 'judge', which placement.wishes.apart keeps from 'trainer'; end that one first, or drop the wish",
  );
});
