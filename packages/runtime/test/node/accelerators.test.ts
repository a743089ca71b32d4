import { expect, test } from "vitest";
import { parseAmdSmi, parseNvidiaSmi, parseRocmSmi } from "../../src/node/accelerators.ts";

const mebibyte = 2 ** 20;

test("nvidia-smi's lines are read, with the NUMA node of their bus where the kernel knows it", () => {
  const output = "0, 143771, 00000000:19:00.0, NVIDIA H200\n1, 81559, 00000000:3B:00.0, NVIDIA H100 80GB HBM3, PCIe\n";
  const numaOf = (bus: string) => (bus === "00000000:3B:00.0" ? 1 : undefined);
  expect(parseNvidiaSmi(output, numaOf)).toEqual([
    { index: 0, memoryBytes: 143771 * mebibyte, name: "NVIDIA H200" },
    { index: 1, memoryBytes: 81559 * mebibyte, name: "NVIDIA H100 80GB HBM3, PCIe", numa: 1 },
  ]);
  expect(parseNvidiaSmi("0, 81559\n")).toEqual([{ index: 0, memoryBytes: 81559 * mebibyte }]);
  expect(parseNvidiaSmi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")).toEqual([]);
  expect(parseNvidiaSmi("No devices were found\n")).toEqual([]);
});

const mi300x = {
  gpu: 0,
  asic: { market_name: "AMD Instinct MI300X", vendor_id: "0x1002", device_id: "0x74a1", num_compute_units: 304 },
  vram: { type: "HBM", vendor: "N/A", size: { value: 196592, unit: "MB" }, bit_width: 8192 },
  numa: { node: 1, affinity: 1 },
};

test("amd-smi's GPUs are read, as a list and as its later object, and with amounts in one string", () => {
  const first = { index: 0, memoryBytes: 196592 * mebibyte, name: "AMD Instinct MI300X", numa: 1 };
  expect(parseAmdSmi(JSON.stringify([mi300x]))).toEqual([first]);
  const second = { gpu: 1, asic: "N/A", vram: { size: "16368 MB" }, numa: { node: -1 } };
  expect(parseAmdSmi(JSON.stringify({ gpu_data: [mi300x, second], cpu_data: [] }))).toEqual([
    first,
    { index: 1, memoryBytes: 16368 * mebibyte },
  ]);
  expect(parseAmdSmi(JSON.stringify([{ gpu: 0, vram: { size: "N/A" } }, "noise"]))).toEqual([]);
  expect(() => parseAmdSmi("ERROR:root:Unable to load amdgpu")).toThrow();
});

test("rocm-smi's cards are read, whatever their series is called", () => {
  const cards = {
    card0: { "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "1", "Card series": "MI250X" },
    card1: { "VRAM Total Memory (B)": "21458059264", "Card Series": "Radeon RX 7900 XT", "Card Model": "0x744c" },
    card2: { "VRAM Total Memory (B)": "17163091968", "Card Series": "N/A" },
    card3: { "Card Series": "of unknown size" },
    system: { "Driver version": "6.8.5" },
  };
  expect(parseRocmSmi(JSON.stringify(cards))).toEqual([
    { index: 0, memoryBytes: 68702699520, name: "MI250X" },
    { index: 1, memoryBytes: 21458059264, name: "Radeon RX 7900 XT" },
    { index: 2, memoryBytes: 17163091968 },
  ]);
});
