import type { PlanMode, Schedule } from "./problem.ts";

/** The name for what a schedule does: take turns, own devices, or both. */
export function modeOf(schedule: Schedule): PlanMode {
  let temporal = false;
  let spatial = false;
  const visit = (part: Schedule): void => {
    if (part.op === "node") return;
    if (part.op === "temporal") temporal = true;
    else spatial = true;
    for (const side of "stages" in part ? part.stages : [part.first, part.second]) visit(side);
  };
  visit(schedule);
  if (temporal && spatial) return "hybrid";
  return spatial ? "spatial" : "temporal";
}

/** Of those that are asked for: what runs as one shares nothing, and is of any of them. */
export function modeAmong(modes: readonly PlanMode[], schedule: Schedule): PlanMode {
  const mode = modeOf(schedule);
  return schedule.op === "node" && !modes.includes(mode) ? modes[0]! : mode;
}
