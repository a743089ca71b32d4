import type { PlanModel } from "./model.ts";
import type { Schedule } from "./problem.ts";

/** A leaf on its part of the problem's own devices, or on what its pool gives it. */
export function nodeSchedule(model: PlanModel, leaf: number, level: number, itemsIndex: number): Schedule {
  const { id, members } = model.leaves[leaf]!;
  const devices = model.allocation.devices.get(members[0]!.id) ?? level * model.step;
  return { op: "node", node: id, devices, items: model.items[itemsIndex]! };
}
