import { type DeviceSpec, PlacementConfig, PlacementMode } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import {
  checkWishes,
  type PlacementInput,
  planFromProfile,
  ReplannerState,
  resolvePlacement,
  solvePlan,
  withWishes,
} from "../src/index.ts";
import { chainProfile } from "./synthetic-profile.ts";

/** Two nodes of so many CPU devices each, numbered over both. */
const cluster = (perNode: number): DeviceSpec[] =>
  ["n0", "n1"].flatMap((node, n) =>
    Array.from({ length: perNode }, (_, i) => ({
      id: `${node}/cpu:${i}`,
      index: n * perNode + i,
      node,
      kind: "cpu",
      memoryBytes: 2 ** 30,
    })),
  );

const components = [{ name: "rollout" }, { name: "reward" }, { name: "actor" }];
const input = (over: Partial<PlacementInput> = {}): PlacementInput => ({
  mode: "hybrid",
  components,
  devices: cluster(2),
  maxStaleness: 0,
  ...over,
});
const pinned = (rollout: string) => ({ explicit: { rollout, "reward,actor": "all" } });
const devicesOf = (plan: ReturnType<typeof resolvePlacement>, name: string): string[] =>
  plan.components[name]!.ranks.flatMap((rank) => [...rank.devices]);

describe("a device that must stay free", () => {
  test.each([
    ["1-3", "2", /'rollout: 1-3' names device 2 \('n1\/cpu:0'\), which placement.wishes.freeDevices '2' keeps free/],
    [
      "node[1].0",
      "2",
      /'rollout: node\[1\]\.0' names device 0 \('n1\/cpu:0'\), which placement.wishes.freeDevices '2'/,
    ],
    ["node(n1).1", "node[1].all", /names device 1 \('n1\/cpu:1'\), which placement.wishes.freeDevices 'node\[1\].all'/],
    ["node[1].all", "2-3", /'rollout: node\[1\]\.all' has no device left: placement.wishes.freeDevices '2-3' keeps/],
  ])("is refused to a component that is pinned on it: '%s' with '%s' free", (rollout, freeDevices, message) => {
    for (const mode of PlacementMode.options)
      expect(() => resolvePlacement(input({ mode, ...pinned(rollout), wishes: { freeDevices } }))).toThrow(message);
    const remedy = /name other devices, or drop it from freeDevices/;
    expect(() => resolvePlacement(input({ ...pinned(rollout), wishes: { freeDevices } }))).toThrow(remedy);
    const asked = { ...input(), batch: 8, pinned: { rollout }, wishes: { freeDevices } };
    const profile = chainProfile({ rollout: { perItem: 1 }, reward: { perItem: 1 }, actor: { perItem: 1 } }, 8);
    expect(() => planFromProfile(profile, asked)).toThrow(message);
  });

  test("is counted by expressions, and left out of 'all'", () => {
    const wishes = { freeDevices: "0" };
    const plan = resolvePlacement(input({ ...pinned("node[0].1,node[1].1"), wishes }));
    expect(devicesOf(plan, "rollout")).toEqual(["n0/cpu:1", "n1/cpu:1"]);
    expect(devicesOf(plan, "actor")).toEqual(["n0/cpu:1", "n1/cpu:0", "n1/cpu:1"]);
    const whole = resolvePlacement(input({ ...pinned("node[1].0"), wishes: { freeDevices: "node[0].all" } }));
    expect(devicesOf(whole, "rollout")).toEqual(["n1/cpu:0"]);
    const grouped = { ...pinned("group(back).0"), nodeGroups: { back: [1] } };
    const plan2 = resolvePlacement(input({ ...grouped, wishes: { freeDevices: "node[0].all" } }));
    expect(devicesOf(plan2, "rollout")).toEqual(["n1/cpu:0"]);
  });

  test("stays free where some of those that are to be free have gone", () => {
    const all = cluster(2);
    const devices = all.filter(({ node }) => node === "n1");
    for (const freeDevices of ["1-2", "node[0].all,node[1].0", "2"]) {
      const wanted = input({ devices, numbered: all, wishes: { freeDevices } });
      expect(withWishes(wanted).devices.map(({ id }) => id)).toEqual(["n1/cpu:1"]);
      for (const mode of ["temporal"] as const)
        expect(devicesOf(resolvePlacement({ ...wanted, mode }), "actor")).toEqual(["n1/cpu:1"]);
    }
    expect(() => withWishes(input({ devices, numbered: all, wishes: { freeDevices: "7" } }))).toThrow("names device 7");
    expect(() => resolvePlacement(input({ devices, numbered: all, ...pinned("0") }))).toThrow(
      "names device 0, but this cluster has devices 2-3",
    );
  });

  test.each(["0-1 x2", "0-1 /2"])("has no ranks: '%s' is refused", (freeDevices) => {
    expect(() => withWishes(input({ wishes: { freeDevices } }))).toThrow("leave out '/' and 'x', as in '0-3'");
  });

  test.each([
    ["spatial", { modes: ["spatial" as const] }, {}],
    ["apart", { apart: [["rollout", "reward", "actor"]] }, {}],
    ["wide ranks", {}, { components: [{ name: "rollout", devicesPerRank: 2 }, ...components.slice(1)] }],
  ])("is named where it is why nothing fits, and only then (%s)", (_, wishes, more) => {
    const profile = chainProfile({ rollout: { perItem: 1 }, reward: { perItem: 1 }, actor: { perItem: 1 } }, 8);
    const ways = {
      resolved: (asked: object) =>
        resolvePlacement(input({ mode: "modes" in wishes ? "spatial" : "temporal", ...more, ...asked })),
      checked: (asked: object) => checkWishes({ ...input(), wishes: undefined, ...more, ...asked }),
      planned: (asked: object) => planFromProfile(profile, { ...input(), batch: 8, ...more, ...asked }),
    };
    const reason =
      /^placement.wishes.freeDevices '0,2-3' leaves too few devices, 1 of 4, where all of them are enough; keep fewer free: /;
    for (const [name, plan] of Object.entries(ways)) {
      if (name === "resolved" && "apart" in wishes) continue; // taking turns keeps nothing apart, on however many devices
      expect(() => plan({ wishes: { ...wishes, freeDevices: "0,2-3" } }), name).toThrow(reason);
      const none = { wishes: { ...wishes, freeDevices: "0" }, devices: cluster(1).slice(0, 2) };
      if (Object.keys(wishes).length > 0) expect(() => plan(none), name).toThrow(/^(?!placement.wishes.freeDevices)/);
    }
  });

  test("that does not exist is refused in the words of the wish, with what there is and the remedy", () => {
    for (const freeDevices of ["99", "0-99"]) {
      let error: unknown;
      try {
        withWishes(input({ wishes: { freeDevices } }));
      } catch (thrown) {
        error = thrown;
      }
      expect(error).toMatchObject({
        message: `placement.wishes.freeDevices: '${freeDevices}' names device 99, but this cluster has devices 0-3; name some of these`,
      });
      expect((error as Error).cause).toBeUndefined();
    }
  });

  test.each([[99], -1, 1.5, true])("is written as one text: %j is refused with one reason", (freeDevices) => {
    const { error } = PlacementConfig.safeParse({ wishes: { freeDevices } });
    const reasons = error!.issues.flatMap((issue) => ("errors" in issue ? issue.errors.flat() : [issue]));
    expect([...new Set(reasons.map(({ message }) => message))]).toEqual([
      "expected devices in one text, in the grammar of placement.components, such as '4-7' or '0,2'",
    ]);
  });

  test("is not measured on, whichever number it has, and neither is one that has gone", () => {
    const traits = { devicesPerRank: 1, minDevices: 1, maxDevices: 4 };
    const all = cluster(2);
    for (const [devices, free] of [
      [all, "0"],
      [all, "1-2"],
      [all.slice(2), "3"],
    ] as const) {
      const usable = withWishes(input({ devices: [...devices], numbered: all, wishes: { freeDevices: free } }));
      const measuring = new ReplannerState({
        ...{ ...usable, batch: 8, profile: undefined, propose: () => [] },
        traits: new Map(components.map(({ name }) => [name, { key: name, ...traits }])),
        header: { workflow: "w", createdAt: "2026-01-01T00:00:00Z", hardware: { key: "k", description: "" } },
        options: PlacementConfig.parse({}).auto,
      });
      const { plan } = measuring.start();
      for (const { name } of components) expect(devicesOf(plan, name)).toEqual(usable.devices.map(({ id }) => id));
    }
  });

  test("is not needed by a component of a solve problem, or is refused, with any method", () => {
    const time = { type: "formula", perItem: 1 };
    const problem = (node: object, reserved: number) => ({
      ...{ devices: 4, batch: 4, reserved },
      nodes: [{ id: "a", time, ...node }],
    });
    for (const method of ["fast", "naive"]) {
      expect(() => solvePlan(problem({ minDevices: 3 }, 2), { method })).toThrow(
        "reserved: '2' is not allowed: 'a' needs at least 3 of the 4 devices (minDevices 3, unit 1), so at most 1 may stay free; lower reserved, or that",
      );
      expect(() => solvePlan(problem({ unit: 4 }, 1), { method })).toThrow("so at most 0 may stay free");
      expect(solvePlan(problem({ minDevices: 3 }, 1), { method }).feasible).toBe(true);
      expect(solvePlan(problem({ minDevices: 5 }, 1), { method }).feasible).toBe(false);
    }
  });
});
