/**
 * What may be although no schedule is. Schedules cut the flow in two again and again, and a component runs on as many of its devices as
 * take it least. Layouts that moved parts make, or that are written by hand, do neither. Pure.
 */
import type { SolveOptions } from "@treadle/contracts";
import { type PlanNode, type PlanProblem, planModes } from "../plan/problem.ts";
import { solvePlan } from "../plan/solve.ts";

/** Of more, nothing is proven: what feeds nothing has many more cuts. */
const mostUncut = 6;

/**
 * Whether a problem that has no schedule may have a plan: it is asked without what only schedules keep to. Those of components that feed
 * nobody are any sets, and those of components that take the same time everywhere use any number of devices. Sets of a hybrid are
 * made of those of other modes.
 */
export function mayBeBeyondSchedules(problem: PlanProblem, limits: SolveOptions = {}): boolean {
  const { together, apart, useAll, modes, nodes, edges } = problem;
  const isCut = together.length + apart.length > 0 && edges.length > 0;
  const isTimed = useAll && nodes.some(({ time }) => !isConstant(time));
  const isHybrid = modes.includes("hybrid") && modes.length < planModes.length && mayBeHybrid(problem);
  if (!isCut && !isTimed && !isHybrid) return false;
  if (isCut && nodes.length > mostUncut) return true;
  const relaxed: PlanProblem = {
    ...problem,
    ...(isCut ? { edges: [] } : {}),
    ...(isTimed ? { nodes: nodes.map(takingOneSecond) } : {}),
    ...(isHybrid ? { modes: [...planModes] } : {}),
  };
  const { feasible, stats } = solvePlan(relaxed, limits);
  return feasible || !stats.exact;
}

const isConstant = (time: PlanNode["time"]): boolean =>
  time.type === "formula" ? time.perItem === 0 : new Set(time.seconds.flat()).size === 1;

const takingOneSecond = (node: PlanNode): PlanNode => ({
  ...node,
  time: { type: "formula", base: 1, perItem: 0, alpha: 1 },
});

/** Whether two may have some devices in common, and two may not have all. Where they may not, no layout is a hybrid. */
export function mayBeHybrid({ nodes, pools, devices, reserved, apart }: PlanProblem): boolean {
  const names = [...new Set(nodes.map(({ pool }) => pool))];
  const isApart = (a: string, b: string): boolean => apart.some((ids) => ids.includes(a) && ids.includes(b));
  const mayShare = nodes.some(({ id, pool }, i) =>
    nodes.slice(i + 1).some((other) => other.pool === pool && !isApart(id, other.id)),
  );
  const mayDiffer =
    names.length > 1 ||
    names.some((name) => {
      if (name !== undefined && pools[name]!.shared) return false;
      const all = name === undefined ? devices - reserved : pools[name]!.devices;
      return nodes.some(({ pool, minDevices, unit }) => pool === name && Math.ceil(minDevices / unit) * unit < all);
    });
  return mayShare && mayDiffer;
}
