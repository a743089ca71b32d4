/** Which of a problem's wishes is why it has no schedule. Pure. */
import { type PlanProblem, planModes } from "./problem.ts";

/** `if`: what would have to hold instead. */
type Wish = { readonly if: string; readonly without: PlanProblem };

/**
 * In a sentence, or none where it is not the wishes. Whether it is one of them is found out by asking once more without it.
 */
export function blamedWishes(problem: PlanProblem, isFeasible: (without: PlanProblem) => boolean): string[] {
  const wishes = wishesOf(problem);
  const blamed = wishes.filter(({ without }) => isFeasible(without));
  if (blamed.length > 0) return [`there is a schedule if ${blamed.map((wish) => wish.if).join(", or if ")}`];
  if (wishes.length < 2 || !isFeasible(withoutWishes(problem))) return [];
  return [`there is a schedule if several of these are so: ${wishes.map((wish) => wish.if).join("; ")}`];
}

function wishesOf(problem: PlanProblem): Wish[] {
  const { modes, reserved, useAll, nodes } = problem;
  const quoted = (ids: readonly string[]): string => ids.map((id) => `'${id}'`).join(" and ");
  const others = planModes.filter((mode) => !modes.includes(mode));
  const groups = (key: "together" | "apart"): Wish[] =>
    problem[key].map((ids) => ({
      if: `${quoted(ids)} need not be ${key}`,
      without: { ...problem, [key]: problem[key].filter((other) => other !== ids) },
    }));
  return [
    ...(others.length === 0
      ? []
      : [{ if: `it may be ${others.join(" or ")}`, without: { ...problem, modes: [...planModes] } }]),
    ...groups("together"),
    ...groups("apart"),
    ...(reserved === 0
      ? []
      : [
          {
            if: `${reserved} of ${problem.devices} devices need not stay free`,
            without: { ...problem, reserved: 0 },
          },
        ]),
    ...(useAll ? [{ if: "devices may be idle", without: { ...problem, useAll: false } }] : []),
    ...nodes.flatMap((node) =>
      node.maxRanks === undefined
        ? []
        : [{ if: `'${node.id}' may have more ranks than '${node.maxRanks}'`, without: unlimited(problem, node.id) }],
    ),
  ];
}

const unlimited = (problem: PlanProblem, id?: string): PlanProblem => ({
  ...problem,
  nodes: problem.nodes.map(({ maxRanks, ...node }) =>
    id === undefined || node.id === id || maxRanks === undefined ? node : { ...node, maxRanks },
  ),
});

const withoutWishes = (problem: PlanProblem): PlanProblem => ({
  ...unlimited(problem),
  ...{ modes: [...planModes], together: [], apart: [], reserved: 0, useAll: false },
});
