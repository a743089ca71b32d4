import type { ComponentProfile, Profile } from "@treadle/contracts";
import { expect, test } from "vitest";
import { describeProfile } from "../src/view/profile-table.ts";

const measuredOn = (devices: readonly number[]): Profile => {
  const component: ComponentProfile = {
    ...{ key: "k", devicesPerRank: 1, minDevices: 1, maxDevices: 8, memory: [] },
    ...{ onloadSeconds: 0, offloadSeconds: 0, serialSeconds: 0 },
    samples: devices.map((count) => {
      return { devices: count, items: 8, seconds: 1, spread: 0, accepted: 3, rejected: 0, contended: false };
    }),
    fit: { base: 0.5, perItem: 0.25, alpha: 0.75, relativeError: 0.01 },
  };
  return {
    ...{ version: 1, workflow: "w", createdAt: "2026-01-01T00:00:00.000Z", steps: [], overheadSeconds: 0 },
    hardware: { key: "h", description: "2 slots" },
    graph: { batch: 8, components: {}, channels: {}, edges: [], calls: [], cycles: [] },
    components: { rollout: component },
  };
};
const lawOf = (devices: readonly number[]) =>
  describeProfile(measuredOn(devices)).find((line) => line.startsWith("rollout: "));

test("how work spreads over devices is a law only where it was measured on several counts of them", () => {
  expect(lawOf([1, 2])).toContain("an item / devices^0.75,");
  for (const measured of [[4], [4, 4]]) {
    expect(lawOf(measured)).toContain("an item / device (measured on 4 only; on others work is taken to split evenly)");
    expect(lawOf(measured)).not.toContain("^");
  }
});
