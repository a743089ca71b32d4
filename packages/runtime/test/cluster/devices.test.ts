import { ClusterConfig } from "@treadle/contracts";
import { expect, test } from "vitest";
import { localDevices, visibleDevices } from "../../src/cluster/devices.ts";

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
