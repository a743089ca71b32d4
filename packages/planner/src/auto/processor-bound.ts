import type { DeviceSpec, Profile } from "@treadle/contracts";

/**
 * Seconds that the processors need at least for a step's work, whoever runs beside whom: more slots than cores make
 * components wait for one another, which a schedule of slots does not see. 0 where slots are cores, or nothing is known.
 */
export function processorBoundSeconds({ hardware, components }: Profile, devices: readonly DeviceSpec[]): number {
  const { coresPerSlot } = hardware;
  const slots = devices.filter(({ kind }) => kind === "cpu").length;
  if (coresPerSlot === undefined || coresPerSlot >= 1 || slots === 0) return 0;
  const work = Object.values(components).reduce((sum, { processorSeconds = 0 }) => sum + processorSeconds, 0);
  return work / Math.max(1, slots * coresPerSlot);
}
