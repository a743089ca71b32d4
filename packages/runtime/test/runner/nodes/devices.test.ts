import { ClusterConfig, type NodeInfo } from "@treadle/contracts";
import { expect, test } from "vitest";
import { visibleDevices } from "../../../src/node/machine-devices.ts";
import { localDevices, shareOutDevices } from "../../../src/runner/nodes/devices.ts";

test("a configured number of devices gives so many slots that share the memory", () => {
  const devices = localDevices(ClusterConfig.parse({ devices: 3, memoryPerDeviceMiB: 100 }), "node:0");
  expect(devices.map(({ id }) => id)).toEqual(["cpu:0", "cpu:1", "cpu:2"]);
  expect(devices.every(({ memoryBytes }) => memoryBytes === 100 * 2 ** 20)).toBe(true);
});

test("a process sees its own accelerators only, and none when it has none", () => {
  expect(visibleDevices(["cuda:2", "cuda:5"], "node:0")).toEqual({
    CUDA_VISIBLE_DEVICES: "2,5",
    ROCR_VISIBLE_DEVICES: "",
  });
  expect(visibleDevices(["cpu:0"], "node:0")).toEqual({ CUDA_VISIBLE_DEVICES: "", ROCR_VISIBLE_DEVICES: "" });
});

test("auto gives accelerators first and a CPU device a core beside them; a number gives CPU devices alone", () => {
  const info = (cpus: number, numAccelerators: number) => ({
    cpus,
    memoryBytes: 2 ** 30,
    labels: {},
    platform: "linux",
    workers: {},
    devices: Array.from({ length: numAccelerators }, (_, index) => ({
      ...{ kind: "cuda", index, memoryBytes: 7, name: "NVIDIA H200" },
    })),
  });
  const nodes = [
    { name: "a", info: info(2, 1) },
    { name: "b", info: info(3, 0) },
  ];
  const idsWith = (devices: "auto" | number) =>
    shareOutDevices(ClusterConfig.parse({ devices }))
      .of(nodes)
      .map(({ id }) => id);
  expect(idsWith("auto")).toEqual(["a/cuda:0", "a/cpu:0", "a/cpu:1", "b/cpu:0", "b/cpu:1", "b/cpu:2"]);
  const named = shareOutDevices(ClusterConfig.parse({ devices: "auto" })).of(nodes);
  expect(named.map(({ name }) => name)).toEqual(["NVIDIA H200", ...Array.from({ length: 5 }, () => undefined)]);
  expect(idsWith(3)).toEqual(["a/cpu:0", "a/cpu:1", "b/cpu:0"]);
});

test("a node that comes in the place of another has as many slots as that one; beside all of them one", () => {
  const info = { cpus: 8, memoryBytes: 2 ** 30, labels: {}, platform: "linux", workers: {}, devices: [] };
  const node = (name: string) => ({ name, info });
  const [a, b, c, d] = [node("a"), node("b"), node("c"), node("d")];
  const cluster = shareOutDevices(ClusterConfig.parse({ devices: 6 }));
  const slots = (nodes: { name: string; info: NodeInfo }[]) => cluster.withSpares(nodes).map(({ id }) => id);
  expect(slots([a, b])).toHaveLength(6);
  expect(slots([a, b, d]).filter((id) => id.startsWith("d/"))).toEqual(["d/cpu:0"]);
  expect(slots([b, c]).filter((id) => id.startsWith("c/"))).toEqual(["c/cpu:0", "c/cpu:1", "c/cpu:2", "c/cpu:3"]);
});
