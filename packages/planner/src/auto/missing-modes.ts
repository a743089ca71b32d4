/** Modes of which there is no plan, and why, as far as that is known. Pure. */
import type { PlacementMode, PlacementWishes } from "@treadle/contracts";
import { outOfTime } from "../plan/explain.ts";
import { type PlanAnswer, type PlanProblem, planModes } from "../plan/problem.ts";
import { mayBeHybrid } from "./beyond-schedules.ts";

export type MissingMode = { readonly mode: PlacementMode; readonly why: string };

/** `answers`: of every way of searching; what only one of them knows is not known. What no schedule is, another layout may be. */
export function missingModes(
  problem: PlanProblem,
  answers: readonly PlanAnswer[],
  planned: readonly PlacementMode[],
  wishes: PlacementWishes | undefined,
): MissingMode[] {
  const wanted = wishes?.modes;
  const whyNot = (mode: PlacementMode): string => {
    if (wanted && !wanted.includes(mode))
      return `not asked for: placement.wishes.modes is ${wanted.map((each) => `'${each}'`).join(" and ")}`;
    if (answers.some(({ unsearched }) => unsearched.includes(mode))) return outOfTime([mode]);
    const isEmpty = answers.every(({ feasible, empty, stats }) => (feasible ? empty.includes(mode) : stats.exact));
    const isOfSchedules = problem.useAll || (mode === "hybrid" && mayBeHybrid(problem));
    if (isEmpty)
      return isOfSchedules
        ? "no schedule of this mode is possible, and no other plan of it was found"
        : "no plan of this mode is possible";
    if (answers.some(({ alternatives }) => alternatives.some((each) => each.mode === mode)))
      return "no plan of this mode can be laid out, or none that is another than those above";
    return "no plan of this mode was found; it is not proven that there is none";
  };
  return planModes.filter((mode) => !planned.includes(mode)).map((mode) => ({ mode, why: whyNot(mode) }));
}
