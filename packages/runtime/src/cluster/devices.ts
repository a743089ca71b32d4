/** The devices of this machine, as the configuration asks for them. */
import { availableParallelism, totalmem } from "node:os";
import type { DeviceSpec, RuntimeConfig } from "@treadle/contracts";

/**
 * CPU devices are slots for one engine process each; the operating system shares the cores among them, so there may be
 * more of them than cores. `auto` gives one a core. Their memory is an even share of the machine's unless configured.
 */
export function localDevices(config: RuntimeConfig["cluster"], node: string): DeviceSpec[] {
  const count = config.devices === "auto" ? availableParallelism() : config.devices;
  const memoryBytes =
    config.memoryPerDeviceMiB === undefined ? Math.floor(totalmem() / count) : config.memoryPerDeviceMiB * 2 ** 20;
  return Array.from({ length: count }, (_, index) => ({ id: `cpu:${index}`, index, node, kind: "cpu", memoryBytes }));
}
