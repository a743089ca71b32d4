import { type DeviceSpec, Plan, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type NearestPlacement, type PlacementInput, resolvePlacement } from "../src/index.ts";

const gib = 1024 ** 3;

function cluster(count: number, nodes = 1, kind = "cpu"): DeviceSpec[] {
  return Array.from({ length: count }, (_, index) => ({
    id: `${kind}:${index}`,
    index,
    node: `node-${Math.floor((index * nodes) / count)}`,
    kind,
    memoryBytes: 16 * gib,
  }));
}

function input(overrides: Partial<PlacementInput> = {}): PlacementInput {
  return {
    mode: "temporal",
    components: [{ name: "rollout" }, { name: "inference" }, { name: "actor" }],
    devices: cluster(4),
    maxStaleness: 0,
    ...overrides,
  };
}

function failure(value: PlacementInput): TreadleError {
  try {
    resolvePlacement(value);
  } catch (error) {
    if (error instanceof TreadleError) return error;
    throw error;
  }
  throw new Error("the placement was accepted");
}

const devicesOf = (plan: Plan, name: string): string[] => plan.components[name]!.ranks.map((r) => r.devices.join("+"));

describe("temporal", () => {
  test("spans every component over all devices and swaps once a batch", () => {
    const plan = resolvePlacement(input({ batchItems: 64 }));
    for (const name of ["rollout", "inference", "actor"]) {
      expect(devicesOf(plan, name)).toEqual(["cpu:0", "cpu:1", "cpu:2", "cpu:3"]);
    }
    expect(plan.granularity).toEqual({ default: "all", channels: {} });
    expect(plan.sharing).toEqual([
      {
        components: ["rollout", "inference", "actor"],
        devices: ["cpu:0", "cpu:1", "cpu:2", "cpu:3"],
        fitTogether: false,
      },
    ]);
    expect(Plan.parse(plan)).toEqual(plan);
  });

  test("gives fewer ranks an equal run of devices each, and more ranks an equal stack", () => {
    const plan = resolvePlacement(
      input({
        components: [
          { name: "actor", ranks: { max: 2 } },
          { name: "simulator", ranks: { fixed: 8 } },
        ],
      }),
    );
    expect(devicesOf(plan, "actor")).toEqual(["cpu:0+cpu:1", "cpu:2+cpu:3"]);
    expect(devicesOf(plan, "simulator")).toEqual("00112233".split("").map((i) => `cpu:${i}`));
  });

  test("names the devices that a tensor-parallel size leaves idle", () => {
    const plan = resolvePlacement(input({ components: [{ name: "rollout", devicesPerRank: 3 }] }));
    expect(devicesOf(plan, "rollout")).toEqual(["cpu:0+cpu:1+cpu:2"]);
    expect(plan.explanation.join("\n")).toContain("leaves cpu:3 idle");
  });

  test("says which sharers stay loaded side by side", () => {
    const components = [6, 10].map((size, i) => ({ name: `c${i}`, memoryBytesPerDevice: size * gib }));
    expect(resolvePlacement(input({ components })).sharing[0]!.fitTogether).toBe(true);
    components[0]!.memoryBytesPerDevice += 1;
    expect(resolvePlacement(input({ components })).sharing[0]!.fitTogether).toBe(false);
  });
});

describe("spatial", () => {
  test("splits devices in order, the remainder to earlier components, and the batch into four to eight chunks", () => {
    const plan = resolvePlacement(input({ mode: "spatial", batchItems: 64 }));
    expect(devicesOf(plan, "rollout")).toEqual(["cpu:0", "cpu:1"]);
    expect(devicesOf(plan, "inference")).toEqual(["cpu:2"]);
    expect(devicesOf(plan, "actor")).toEqual(["cpu:3"]);
    expect(plan.granularity.default).toBe(8);
    expect(plan.sharing).toEqual([]);
  });

  test("follows weights", () => {
    const components = [{ name: "rollout", weight: 3 }, { name: "actor" }];
    const plan = resolvePlacement(input({ mode: "spatial", components, devices: cluster(8) }));
    expect([plan.components.rollout!.ranks.length, plan.components.actor!.ranks.length]).toEqual([6, 2]);
  });

  test("with too few devices is impossible, and offers the hybrid that is", () => {
    const error = failure(input({ mode: "spatial", devices: cluster(2) }));
    expect(error.code).toBe("placement.impossible");
    expect(error.details.nearest).toEqual({
      mode: "hybrid",
      components: { rollout: "0", "inference,actor": "1" },
    });
    expect(error.message).toContain("need at least 3");
    expect(error.message).toContain("placement.mode=hybrid with 'rollout: 0; inference,actor: 1'");
  });

  test("on one device only temporal is left", () => {
    const error = failure(input({ mode: "spatial", devices: cluster(1) }));
    expect(error.details.nearest).toEqual({ mode: "temporal", components: { "rollout,inference,actor": "0" } });
  });
});

describe("hybrid", () => {
  test("gives the first component half of the devices, and whole batches between those that share", () => {
    const flow = [
      { from: "rollout", to: "inference", channel: "episodes" },
      { from: "inference", to: "actor", channel: "scored" },
    ];
    const plan = resolvePlacement(input({ mode: "hybrid", flow, batchItems: 7 }));
    expect(devicesOf(plan, "rollout")).toEqual(["cpu:0", "cpu:1"]);
    expect(devicesOf(plan, "inference")).toEqual(["cpu:2", "cpu:3"]);
    expect(devicesOf(plan, "actor")).toEqual(["cpu:2", "cpu:3"]);
    expect(plan.granularity).toEqual({ default: 1, channels: { scored: "all" } });
    expect(plan.sharing.map((s) => s.components)).toEqual([["inference", "actor"]]);
  });
});

describe("placement.components", () => {
  const eight = cluster(8, 2);
  const explicit = (rollout: string, extra: Partial<PlacementInput> = {}) =>
    input({ mode: "hybrid", components: [{ name: "rollout" }], devices: eight, explicit: { rollout }, ...extra });

  test.each([
    ["all", "0 1 2 3 4 5 6 7"],
    ["0-1, 5", "0 1 5"],
    ["0-7 /4", "0+1+2+3 4+5+6+7"],
    ["0-1 x2", "0 0 1 1"],
    ["0-3 /2 x2", "0+1 0+1 2+3 2+3"],
    ["node[1].0-1,3", "4 5 7"],
    ["node[0].3,node[1].0", "3 4"],
    ["node(node-1).all", "4 5 6 7"],
    ["group(trainers).all", "4 5 6 7"],
    ["group(trainers).1", "5"],
  ])("'%s' means %s", (expression, expected) => {
    const plan = resolvePlacement(explicit(expression, { nodeGroups: { trainers: [1] } }));
    expect(devicesOf(plan, "rollout").join(" ").replaceAll("cpu:", "")).toBe(expected);
  });

  test.each([
    ["0-9", "'rollout: 0-9' names device 9, but this cluster has devices 0-7"],
    ["0-999999999", "names device 999999999, but"],
    ["node[1].4", "names device 4, but node[1] has devices 0-3"],
    ["node[2].all", "names node 2, but this cluster has nodes 0-1"],
    ["node(x).all", "names node 'x', but this cluster has 'node-0', 'node-1'"],
    ["group(x).all", "names group 'x', but no node group is configured"],
    ["0-", "is not understood at character 3: expected a device number after '-', found the end"],
    ["0;1", "is not understood at character 2: expected ',', '/', 'x' or the end, found ';'"],
    ["", "is not understood at character 1: expected 'all', 'none', a device number"],
    ["3-1", "has the range '3-1', which runs backwards; write '1-3'"],
    ["0,0", "names device 0 ('cpu:0') twice"],
    ["0-6 /4", "has 7 devices, which do not divide into ranks of 4"],
    ["2-5 /4", "has a rank that crosses from node 'node-0' to 'node-1'"],
    ["0 /0", "asks for 0 where the number of devices a rank must be at least 1"],
  ])("'%s' is refused: %s", (expression, message) => {
    const error = failure(explicit(expression));
    expect(error.code).toBe("placement.invalid");
    expect(error.message).toContain(message);
  });

  test("names unknown, repeated and forgotten components", () => {
    const wrong = (value: Record<string, string>) => failure(input({ mode: "hybrid", explicit: value })).message;
    expect(wrong({ rolout: "0" })).toContain("names component 'rolout'");
    expect(wrong({ rolout: "0" })).toContain("did you mean 'rollout'?");
    expect(wrong({ "rollout,actor": "0", actor: "1" })).toContain("places component 'actor' a second time");
    expect(wrong({ rollout: "0" })).toContain("does not place 'inference', 'actor'");
  });

  test("may not contradict the mode, and the nearest placement keeps it", () => {
    const shared = { rollout: "0-1", "inference,actor": "1-3" };
    const spatial = failure(input({ mode: "spatial", explicit: shared }));
    expect(spatial.message).toContain("puts both 'rollout' and 'inference' on 'cpu:1'");
    expect(spatial.details.nearest).toEqual({
      mode: "spatial",
      components: { rollout: "0-1", inference: "2", actor: "3" },
    });
    const temporal = failure(input({ explicit: shared }));
    expect(temporal.message).toContain("puts 'rollout' on 0-1 and 'inference' on 1-3");
    expect(resolvePlacement(input({ mode: "hybrid", explicit: shared })).sharing).toHaveLength(2);
  });

  test("counts ranks against what the component allows", () => {
    const error = failure(explicit("0-3 x2", { components: [{ name: "rollout", ranks: { max: 4 } }] }));
    expect(error.message).toContain("'rollout' would have 8 ranks, but it allows 1 to 4");
  });

  test("finds a device of another kind by number, unless the component asked for a kind", () => {
    const devices = [...cluster(2, 1, "gpu"), { ...cluster(3)[2]!, id: "cpu:2" }];
    expect(devicesOf(resolvePlacement(explicit("2", { devices })), "rollout")).toEqual(["cpu:2"]);
    const components = [{ name: "rollout", deviceKind: "gpu" }];
    expect(failure(explicit("2", { devices, components })).message).toContain("names device 2, a 'cpu'");
  });
});

test("a component that is too large when alone is told by how much, and where it does fit", () => {
  const devices = cluster(2).map((d, i) => ({ ...d, memoryBytes: (i + 1) * 16 * gib }));
  const error = failure(input({ components: [{ name: "actor", memoryBytesPerDevice: 24 * gib }], devices }));
  expect(error.message).toContain("needs 24 GiB on 'cpu:0', which has 16 GiB: 8 GiB too little");
  expect(error.details).toMatchObject({ missingBytes: 8 * gib, nearest: { components: { actor: "1" } } });
});

test("problems of shape are reported together, with paths", () => {
  const error = failure({ ...input(), maxStaleness: -1, components: [{ name: "a b" }] });
  expect(error.code).toBe("placement.invalid");
  expect(error.message).toContain("placement.maxStaleness");
  expect(error.message).toContain("placement.components.0.name");
});

describe("properties", () => {
  const component = fc.record(
    {
      ranks: fc.oneof(
        fc.record({ fixed: fc.integer({ min: 1, max: 6 }) }),
        fc.record({ max: fc.integer({ min: 1, max: 6 }) }),
        fc.record({ min: fc.integer({ min: 1, max: 3 }) }),
      ),
      devicesPerRank: fc.integer({ min: 1, max: 3 }),
      weight: fc.integer({ min: 1, max: 5 }),
    },
    { requiredKeys: [] },
  );
  const inputs = fc
    .record({
      mode: fc.constantFrom("temporal" as const, "spatial" as const, "hybrid" as const),
      components: fc.array(component, { minLength: 1, maxLength: 5 }),
      count: fc.integer({ min: 1, max: 24 }),
      nodes: fc.integer({ min: 1, max: 4 }),
      batchItems: fc.option(fc.integer({ min: 1, max: 200 }), { nil: undefined }),
    })
    .map(({ mode, components, count, nodes, batchItems }) =>
      input({
        mode,
        components: components.map((c, i) => ({ name: `c${i}`, ...c })),
        devices: cluster(count, Math.min(nodes, count)),
        ...(batchItems === undefined ? {} : { batchItems }),
      }),
    );

  test("every plan keeps its mode's promise; every refusal names a placement that works, or none exists", () => {
    fc.assert(
      fc.property(inputs, (value) => {
        let plan: Plan;
        try {
          plan = resolvePlacement(value);
        } catch (error) {
          if (!(error instanceof TreadleError)) throw error;
          expect(error.code).toBe("placement.impossible");
          const nearest = error.details.nearest as NearestPlacement | null;
          if (nearest) {
            const again = resolvePlacement({ ...value, mode: nearest.mode, explicit: nearest.components });
            expect(again.mode).toBe(nearest.mode);
          }
          return;
        }
        Plan.parse(plan);
        const nodeOf = new Map(value.devices.map((d) => [d.id, d.node]));
        const used = new Map<string, Set<string>>();
        for (const { name, devicesPerRank, ranks = {} } of value.components) {
          const placed = plan.components[name]!.ranks;
          used.set(name, new Set(placed.flatMap((r) => r.devices)));
          expect(placed.length).toBeGreaterThanOrEqual(ranks.fixed ?? ranks.min ?? 1);
          expect(placed.length).toBeLessThanOrEqual(ranks.fixed ?? ranks.max ?? placed.length);
          for (const rank of placed) {
            expect(rank.devices.length).toBe(devicesPerRank ?? placed[0]!.devices.length);
            expect(rank.node).toBe(nodeOf.get(rank.devices[0]!));
            if (devicesPerRank) expect(new Set(rank.devices.map((d) => nodeOf.get(d))).size).toBe(1);
          }
        }
        const owners = new Map<string, number>();
        for (const set of used.values()) for (const id of set) owners.set(id, (owners.get(id) ?? 0) + 1);
        if (value.mode === "spatial") expect([...owners.values()].every((n) => n === 1)).toBe(true);
        if (value.mode === "hybrid") for (const id of used.get("c0")!) expect(owners.get(id)).toBe(1);
        const shared = plan.sharing.flatMap((s) => s.devices).sort();
        expect(shared).toEqual(
          [...owners]
            .filter(([, n]) => n > 1)
            .map(([id]) => id)
            .sort(),
        );
        const chunk = plan.granularity.default;
        if (value.mode !== "temporal" && value.batchItems !== undefined && value.batchItems >= 8) {
          const chunks = Math.ceil(value.batchItems / (chunk as number));
          expect(chunks).toBeGreaterThanOrEqual(4);
          expect(chunks).toBeLessThanOrEqual(8);
        }
      }),
      { numRuns: 400 },
    );
  });

  test("a derived spatial placement, written out and read back, is the same plan", () => {
    fc.assert(
      fc.property(inputs, (value) => {
        const derive = (): Plan | undefined => {
          try {
            return resolvePlacement({ ...value, mode: "spatial" });
          } catch {
            return undefined;
          }
        };
        const plan = derive();
        if (!plan || plan.explanation.some((line) => line.includes("idle"))) return;
        const numbers = (name: string) =>
          [...new Set(plan.components[name]!.ranks.flatMap((r) => r.devices))].map((id) => id.slice(4)).join(",");
        const explicit = Object.fromEntries(value.components.map((c) => [c.name, numbers(c.name)]));
        expect(resolvePlacement({ ...value, mode: "spatial", explicit }).components).toEqual(plan.components);
      }),
      { numRuns: 200 },
    );
  });
});
