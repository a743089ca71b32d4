import { ClusterConfig } from "@treadle/contracts";
import { expect, test } from "vitest";
import { localDevices, parseNvidiaSmi, parseRocmSmi, visibleDevices } from "../../src/cluster/devices.ts";

test("a configured number of devices gives so many slots that share the memory", () => {
  const devices = localDevices(ClusterConfig.parse({ devices: 3, memoryPerDeviceMiB: 100 }), "node:0");
  expect(devices.map(({ id }) => id)).toEqual(["cpu:0", "cpu:1", "cpu:2"]);
  expect(devices.every(({ memoryBytes }) => memoryBytes === 100 * 2 ** 20)).toBe(true);
});

test("what the vendors' tools print is read, and what they might print instead is not taken for devices", () => {
  expect(parseNvidiaSmi("0, 81559\n1, 81559\n")).toEqual([
    { index: 0, memoryBytes: 81559 * 2 ** 20 },
    { index: 1, memoryBytes: 81559 * 2 ** 20 },
  ]);
  expect(parseNvidiaSmi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")).toEqual([]);
  const rocm = { card0: { "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "1" }, system: {} };
  expect(parseRocmSmi(JSON.stringify(rocm))).toEqual([{ index: 0, memoryBytes: 68702699520 }]);
});

test("a process sees its own accelerators only, and none when it has none", () => {
  expect(visibleDevices(["cuda:2", "cuda:5"], "node:0")).toEqual({
    CUDA_VISIBLE_DEVICES: "2,5",
    ROCR_VISIBLE_DEVICES: "",
  });
  expect(visibleDevices(["cpu:0"], "node:0")).toEqual({ CUDA_VISIBLE_DEVICES: "", ROCR_VISIBLE_DEVICES: "" });
});
