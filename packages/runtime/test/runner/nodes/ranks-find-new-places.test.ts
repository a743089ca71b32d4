import { ClusterConfig, type DeviceSpec } from "@treadle/contracts";
import { kindOf, relocate } from "@treadle/core";
import fc from "fast-check";
import { expect, test } from "vitest";
import { shareOutDevices } from "../../../src/runner/nodes/devices.ts";

const device = fc.record({ node: fc.constantFrom("a", "b", "c"), kind: fc.constantFrom("cpu", "cuda") });
const cluster = fc
  .array(device, { maxLength: 10 })
  .map((list): DeviceSpec[] =>
    list.map(({ node, kind }, index) => ({ id: `${node}/${kind}:${index}`, index, node, kind, memoryBytes: 1 })),
  );
const lost = fc.array(fc.constantFrom("gone/cpu:0", "gone/cuda:1", "gone/cpu:2"), { minLength: 1, maxLength: 3 });

test("RE1, RE2: a rank gets as many devices of the same kinds on one node, where it is least crowded, if there are any", () => {
  fc.assert(
    fc.property(cluster, lost, fc.array(fc.nat(3), { minLength: 10, maxLength: 10 }), (devices, wanted, crowd) => {
      const ranksOn = (id: string) => crowd[devices.findIndex((each) => each.id === id)] ?? 0;
      const place = relocate(wanted, devices, ranksOn);
      const kinds = wanted.map(kindOf);
      // Brute force: on each node, the least crowded devices of each kind.
      const best = [...new Set(devices.map(({ node }) => node))].flatMap((node) => {
        const taken = ["cpu", "cuda"].map((kind) => {
          const need = kinds.filter((each) => each === kind).length;
          const have = devices.filter((each) => each.node === node && each.kind === kind).map(({ id }) => ranksOn(id));
          return have.length < need ? undefined : have.toSorted((a, b) => a - b).slice(0, need);
        });
        return taken.includes(undefined) ? [] : [Math.max(...taken.flatMap((list) => list ?? []))];
      });
      if (place === undefined) {
        expect(best).toEqual([]);
        return;
      }
      const chosen = place.devices.map((id) => devices.find((each) => each.id === id) as DeviceSpec);
      expect(new Set(place.devices).size).toBe(wanted.length);
      expect(chosen.map(({ kind }) => kind)).toEqual(kinds);
      expect(chosen.every(({ node }) => node === place.node)).toBe(true);
      expect(Math.max(...place.devices.map(ranksOn))).toBe(Math.min(...best));
    }),
    { numRuns: 2000 },
  );
});

const gibibyte = 2 ** 30;
const node = (name: string, devices: { kind: string; index: number; memoryBytes: number }[] = []) => ({
  name,
  info: { cpus: 2, memoryBytes: 8 * gibibyte, devices, labels: {}, platform: "linux", workers: {} },
});
const idsOf = (devices: readonly DeviceSpec[]) => devices.map(({ id }) => id);

test("a number of devices is spread over the nodes that are there first, and stays with them when they come and go", () => {
  const devices = shareOutDevices(ClusterConfig.parse({ devices: 3 }));
  const [n1, n2, n10] = [node("n1"), node("n2"), node("n10")];
  const all = devices.of([n10, n1, n2]);
  expect(idsOf(all)).toEqual(["n1/cpu:0", "n2/cpu:0", "n10/cpu:0"]);
  expect(all.map(({ index }) => index)).toEqual([0, 1, 2]);
  expect(idsOf(devices.of([n10]))).toEqual(["n10/cpu:0"]);
  expect(devices.of([n10])[0]?.index).toBe(2);
  const few = shareOutDevices(ClusterConfig.parse({ devices: 1, memoryPerDeviceMiB: 512 }));
  expect(idsOf(few.of([n1, n2]))).toEqual(["n1/cpu:0"]);
  expect(few.of([n1])[0]?.memoryBytes).toBe(512 * 2 ** 20);
  expect(idsOf(few.withSpares([n2]))).toEqual(["n2/cpu:0"]);
});

test("auto takes every accelerator, custom device and core, numbered over all nodes", () => {
  const devices = shareOutDevices(ClusterConfig.parse({}));
  const gpu = (index: number) => ({ kind: "cuda", index, memoryBytes: 80 * gibibyte });
  const all = devices.of([
    node("b", [gpu(0), { kind: "robot", index: 0, memoryBytes: 0 }]),
    node("a", [gpu(0), gpu(1)]),
  ]);
  expect(all.filter(({ kind }) => kind === "cuda").map(({ id, index }) => [id, index])).toEqual([
    ["a/cuda:0", 0],
    ["a/cuda:1", 1],
    ["b/cuda:0", 2],
  ]);
  expect(idsOf(all.filter(({ kind }) => kind === "robot"))).toEqual(["b/robot:0"]);
  expect(all.filter(({ kind }) => kind === "cpu").map(({ memoryBytes }) => memoryBytes)).toEqual(
    Array.from({ length: 4 }, () => 4 * gibibyte),
  );
});
