import { NodeInfo } from "@treadle/contracts";
import { expect, test } from "vitest";
import { machineDevices } from "../../src/node/machine-devices.ts";

const gpu = (index: number) => ({ kind: "cuda", index, memoryBytes: 2 ** 30 });
const infoOf = (devices: NodeInfo["devices"], cpus = 2) =>
  NodeInfo.safeParse({ cpus, memoryBytes: 2 ** 30, devices, labels: {}, platform: "linux", workers: {} }).success;

test("a machine offers devices of a kind of its own beside its accelerators, and none that it has anyway", () => {
  const offered = machineDevices({ robot: 2 }, [gpu(0), gpu(1)]);
  expect(offered.map(({ kind, index }) => `${kind}:${index}`)).toEqual(["cuda:0", "cuda:1", "robot:0", "robot:1"]);
  for (const kind of ["cuda", "cpu"])
    expect(() => machineDevices({ [kind]: 1 }, [gpu(0)])).toThrow(`'${kind}' are devices that this machine has anyway`);
});

test("a node that says of two devices that they are one, of slots, or of more cores than there can be, is not understood", () => {
  expect(infoOf([gpu(0), gpu(1)])).toBe(true);
  expect(infoOf([gpu(0), gpu(0)])).toBe(false);
  expect(infoOf([{ kind: "cpu", index: 0, memoryBytes: 0 }])).toBe(false);
  expect([infoOf([], 65_536), infoOf([], 4e8)]).toEqual([true, false]);
});
