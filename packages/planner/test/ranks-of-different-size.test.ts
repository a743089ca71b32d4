import { type DeviceSpec, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type PlacementInput, refuseDegrees, resolvePlacement } from "../src/index.ts";

/** So many devices of each node. */
const cluster = (...nodes: readonly number[]): DeviceSpec[] =>
  nodes
    .flatMap((count, node) => Array.from({ length: count }, () => `node-${node}`))
    .map((node, index) => ({ id: `gpu:${index}`, index, node, kind: "gpu", memoryBytes: 1 }));

const place = (degrees: number[], devices: DeviceSpec[], changes: Partial<PlacementInput> = {}) =>
  resolvePlacement({
    mode: "temporal",
    components: [{ name: "rollout", degrees }, { name: "actor" }],
    devices,
    maxStaleness: 0,
    ...changes,
  });
const ranksOf = (degrees: number[], devices: DeviceSpec[], changes: Partial<PlacementInput> = {}) =>
  place(degrees, devices, changes).components.rollout!.ranks;

describe("a component that lists the devices of each rank", () => {
  test("has a rank of each size, in that order, the largest of which choose first", () => {
    const ranks = ranksOf([1, 4, 2], cluster(8));
    expect(ranks.map(({ devices }) => devices.join(" "))).toEqual(["gpu:6", "gpu:0 gpu:1 gpu:2 gpu:3", "gpu:4 gpu:5"]);
    expect(place([1, 4, 2], cluster(8)).explanation.join("\n")).toContain("leaves gpu:7 idle");
  });

  test.each(["spatial", "hybrid"] as const)("gets as many devices of its own as they are, when it is %s", (mode) => {
    const { components } = place([4, 1], cluster(8), { mode });
    expect(components.rollout!.ranks.map(({ devices }) => devices.length)).toEqual([4, 1]);
    expect(components.actor!.ranks).toHaveLength(3);
  });

  test.each<[string, number[], DeviceSpec[], Partial<PlacementInput>, RegExp]>([
    [
      "more devices than there are",
      [8, 4],
      cluster(8),
      {},
      /'8, 4' devices, which are 12, but it is given 8 \(0-7\); list fewer/,
    ],
    ["a rank that fits on no node", [4, 2], cluster(3, 3), {}, /no node has the 4 left of rank 0.*3, 3 left/],
    [
      "another number of ranks than it allows",
      [2, 1],
      cluster(4),
      { components: [{ name: "rollout", degrees: [2, 1], ranks: { max: 1 } }] },
      /2 ranks, but it allows exactly 1/,
    ],
    [
      "two sizes of a rank",
      [2, 1],
      cluster(4),
      { explicit: { "rollout,actor": "0-3 /2" } },
      /placement.components says how many devices its ranks have, too/,
    ],
    ["more ranks than a wish allows", [2, 1], cluster(4), { wishes: { maxRanks: { rollout: 1 } } }, /allows exactly 1/],
  ])("is refused %s", (_, degrees, devices, changes, message) => {
    expect(() => place(degrees, devices, changes)).toThrow(message);
  });

  test("keeps its sizes beside a limit of its ranks", () => {
    const ranks = ranksOf([2, 1], cluster(4), { wishes: { maxRanks: { rollout: 2 } } });
    expect(ranks.map(({ devices }) => devices.length)).toEqual([2, 1]);
  });

  test("is not planned by what equal ranks were measured to take", () => {
    const refused = () => refuseDegrees([{ name: "actor" }, { name: "rollout", degrees: [2, 1] }]);
    expect(refused).toThrow(/'auto' measures ranks of one size, and component 'rollout' has ranks of '2, 1' devices/);
    expect(() => refuseDegrees([{ name: "rollout", devicesPerRank: 2 }])).not.toThrow();
  });

  test("has every rank on devices of one node, which no other has; powers of two fit wherever they are no more than there are", () => {
    const degree = fc.constantFrom(1, 2, 4, 8);
    const nodes = fc.array(fc.constantFrom(8), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(fc.array(degree, { minLength: 1, maxLength: 12 }), nodes, (degrees, counts) => {
        const devices = cluster(...counts);
        const wanted = degrees.reduce((sum, each) => sum + each, 0);
        if (wanted > devices.length) {
          expect(() => place(degrees, devices)).toThrow(TreadleError);
          return;
        }
        const ranks = ranksOf(degrees, devices);
        expect(ranks.map((rank) => rank.devices.length)).toEqual(degrees);
        const used = ranks.flatMap((rank) => rank.devices);
        expect(new Set(used).size).toBe(wanted);
        for (const rank of ranks)
          for (const id of rank.devices) expect(devices.find((device) => device.id === id)?.node).toBe(rank.node);
      }),
    );
  });
});
