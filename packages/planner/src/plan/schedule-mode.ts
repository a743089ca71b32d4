import type { PlanMode, PlanProblem, Schedule } from "./problem.ts";

/** Whether it is a cycle that could be split: its members take turns. */
const isUnsplit = ({ cycles, nodes }: Pick<PlanProblem, "cycles" | "nodes">, name: string): boolean =>
  cycles === "split" && !nodes.some(({ id }) => id === name);

/** The name for what a schedule does: take turns, own devices, or both. */
export function modeOf(problem: Pick<PlanProblem, "cycles" | "nodes">, schedule: Schedule): PlanMode {
  let temporal = false;
  let spatial = false;
  const visit = (part: Schedule): void => {
    if (part.op === "node") {
      temporal ||= isUnsplit(problem, part.node);
      return;
    }
    if (part.op === "temporal") temporal = true;
    else spatial = true;
    for (const side of "stages" in part ? part.stages : [part.first, part.second]) visit(side);
  };
  visit(schedule);
  if (temporal && spatial) return "hybrid";
  return spatial ? "spatial" : "temporal";
}

/** Of those that are asked for: a single component shares nothing, and is of any of them. */
export function modeAmong(problem: Pick<PlanProblem, "cycles" | "nodes" | "modes">, schedule: Schedule): PlanMode {
  const mode = modeOf(problem, schedule);
  const isAny = schedule.op === "node" && !isUnsplit(problem, schedule.node);
  return isAny && !problem.modes.includes(mode) ? problem.modes[0]! : mode;
}
