import type { DeviceSpec } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { traceFlow } from "../../src/profile/flow-trace.ts";
import { planProbes, usableDevices } from "../../src/profile/profile-probes.ts";
import { observed } from "./observed-calls.ts";

const devicesOf = (count: number, kind = "cpu"): DeviceSpec[] =>
  Array.from({ length: count }, (_, index) => ({
    id: `${kind}:${index}`,
    index,
    node: "node:0",
    kind,
    memoryBytes: 1,
  }));

describe("what is measured first", () => {
  test("is every halving of the ranks of each, of those that can use few devices too", () => {
    const components = [{ name: "rollout", ranks: { max: 2 } }, { name: "actor" }, { name: "wide", devicesPerRank: 4 }];
    const probes = planProbes({ devices: devicesOf(8), components, graph: undefined });
    expect(probes.map(({ devices }) => devices)).toEqual([
      { rollout: 8, actor: 8, wide: 8 },
      { rollout: 1, actor: 4, wide: 4 },
      { rollout: 1, actor: 2, wide: 4 },
      { rollout: 1, actor: 1, wide: 4 },
    ]);
    expect(
      planProbes({ devices: devicesOf(8), components: [{ name: "one", ranks: { max: 1 } }], graph: undefined }),
    ).toHaveLength(1);
  });

  test("does not cross nodes with a rank", () => {
    const devices = devicesOf(6).map((device) => ({ ...device, node: `node:${Math.floor(device.index / 3)}` }));
    const probes = planProbes({
      devices,
      components: [{ name: "a", devicesPerRank: 2, ranks: { min: 2 } }],
      graph: undefined,
    });
    expect(probes.at(-1)?.devices["a"]).toBeGreaterThanOrEqual(5);
  });

  test("is chunks of two sizes too, once it is known what flows", () => {
    const graph = traceFlow([observed({ component: "rollout" }, { takes: [{ channel: "prompts", items: 32 }] })], 32);
    const probes = planProbes({ devices: devicesOf(2), components: [{ name: "rollout" }], graph });
    expect(probes.map(({ granularity }) => granularity)).toEqual(["all", 4, 1, "all"]);
    const few = traceFlow([observed({ component: "rollout" }, { takes: [{ channel: "prompts", items: 11 }] })], 11);
    const narrow = { devices: devicesOf(4), components: [{ name: "rollout", ranks: { max: 4 } }], graph: few };
    expect(planProbes(narrow).map(({ granularity }) => granularity)).toEqual(["all", 1, "all", "all"]);
  });

  test("never makes ranks share a device that need not", () => {
    const component = fc.record({
      name: fc.constant("c"),
      devicesPerRank: fc.integer({ min: 1, max: 4 }),
      ranks: fc.record({ fixed: fc.integer({ min: 1, max: 6 }) }),
    });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 32 }), component, (count, asked) => {
        for (const { devices } of planProbes({ devices: devicesOf(count), components: [asked], graph: undefined })) {
          const given = devices["c"] as number;
          if (given < count) expect(given).toBeGreaterThanOrEqual(asked.ranks.fixed * asked.devicesPerRank);
        }
      }),
    );
  });
});

test("a component uses whole ranks of the devices there are", () => {
  expect(usableDevices({ name: "a", devicesPerRank: 4 }, 10)).toBe(8);
  expect(usableDevices({ name: "a", devicesPerRank: 4, ranks: { max: 1 } }, 10)).toBe(4);
  expect(usableDevices({ name: "a", devicesPerRank: 4 }, 3)).toBeUndefined();
  expect(usableDevices({ name: "a", ranks: { fixed: 4 } }, 2)).toBe(2);
  expect(usableDevices({ name: "a", ranks: { fixed: 4 } }, 2, 4)).toBeUndefined();
});
