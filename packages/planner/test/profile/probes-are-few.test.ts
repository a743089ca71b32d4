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
  test("is every halving of the devices that changes anybody's ranks", () => {
    const components = [{ name: "rollout", ranks: { max: 2 } }, { name: "actor" }];
    const probes = planProbes({ devices: devicesOf(8), components, graph: undefined });
    expect(probes.map(({ devices }) => devices["cpu"])).toEqual([8, 4, 2, 1]);
    const narrow = [{ name: "rollout", ranks: { max: 2 } }];
    expect(
      planProbes({ devices: devicesOf(8), components: narrow, graph: undefined }).map(({ devices }) => devices["cpu"]),
    ).toEqual([8, 1]);
  });

  test("is chunks of two sizes too, once it is known what flows", () => {
    const graph = traceFlow([observed({ component: "rollout" }, { takes: [{ channel: "prompts", items: 32 }] })], 32);
    const probes = planProbes({ devices: devicesOf(2), components: [{ name: "rollout" }], graph });
    expect(probes.map(({ granularity }) => granularity)).toEqual(["all", 4, 1, "all"]);
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
          const given = devices["cpu"] as number;
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
