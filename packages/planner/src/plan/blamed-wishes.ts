/** Which of a problem's wishes is why it has no schedule, and what to do. Pure. */
import { type PlanProblem, planModes } from "./problem.ts";

type Wish = { readonly key: string; readonly remedy: string; readonly drop: (from: PlanProblem) => PlanProblem };

/** The fields that hold a problem's wishes. */
export const wishedOf = (problem: PlanProblem): readonly string[] => [
  ...new Set(wishesOf(problem).map(({ key }) => key)),
];

export const withoutWishes = (problem: PlanProblem): PlanProblem => dropAll(wishesOf(problem), problem);

const dropAll = (wishes: readonly Wish[], problem: PlanProblem): PlanProblem =>
  wishes.reduce((rest, { drop }) => drop(rest), problem);

/**
 * A remedy in a sentence, without a semicolon, or none where there are no wishes, or none of them is why. `isFeasible` is asked once
 * without each wish, and is told how many times it may still be asked, so that each question has its part of the time. It says
 * nothing where it does not know.
 */
export function remedyOf(
  problem: PlanProblem,
  isFeasible: (without: PlanProblem, numLeft: number) => boolean | undefined,
): string | undefined {
  const wishes = wishesOf(problem);
  if (wishes.length === 0) return undefined;
  let left = 2 * wishes.length + 1;
  const isEnough = (dropped: readonly Wish[]): boolean | undefined => isFeasible(dropAll(dropped, problem), left--);
  const alone = wishes.filter((wish) => isEnough([wish]));
  const list = (of: readonly Wish[], word: string): string => of.map(({ remedy }) => remedy).join(`, ${word} `);
  if (alone.length > 0) return list(alone, "or");
  const isAllEnough = isEnough(wishes);
  if (!isAllEnough) return isAllEnough === undefined ? `perhaps ${list(wishes, "or")}` : undefined;
  let needed = wishes;
  for (const wish of wishes) {
    const others = needed.filter((each) => each !== wish);
    if (isEnough(others)) needed = others;
  }
  return list(needed, "and");
}

/** The cheapest to look into first. */
function wishesOf({ modes, together, apart, reserved, useAll, nodes }: PlanProblem): Wish[] {
  const quoted = (ids: readonly string[]): string => ids.map((id) => `'${id}'`).join(" and ");
  const others = planModes.filter((mode) => !modes.includes(mode));
  const groups = (key: "together" | "apart", remedy: (ids: readonly string[]) => string): Wish[] =>
    (key === "together" ? together : apart)
      .filter((ids, i, all) => all.findIndex((other) => isSame(ids, other)) === i)
      .map((ids) => ({
        key,
        remedy: `${remedy(ids)} (${key})`,
        drop: (from) => ({ ...from, [key]: from[key].filter((other) => !isSame(ids, other)) }),
      }));
  return [
    ...groups("apart", (ids) => `let ${quoted(ids)} share devices`),
    ...groups("together", (ids) => `let ${quoted(ids)} have other devices`),
    ...nodes.flatMap(({ id, maxRanks }): Wish[] =>
      maxRanks === undefined
        ? []
        : [
            {
              key: "maxRanks",
              remedy: `give '${id}' more than '${maxRanks}' ranks (maxRanks)`,
              drop: (from) => unlimited(from, id),
            },
          ],
    ),
    ...(reserved === 0
      ? []
      : [
          {
            key: "reserved",
            remedy: `keep none of '${reserved}' devices free (reserved)`,
            drop: dropping({ reserved: 0 }),
          },
        ]),
    ...(useAll ? [{ key: "useAll", remedy: "let devices be idle (useAll)", drop: dropping({ useAll: false }) }] : []),
    ...others.map(
      (mode): Wish => ({
        key: "modes",
        remedy: `allow ${mode} plans (modes)`,
        drop: (from) => ({ ...from, modes: [...from.modes, mode] }),
      }),
    ),
  ];
}

const isSame = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((id) => b.includes(id));

const dropping =
  (wish: Partial<PlanProblem>) =>
  (from: PlanProblem): PlanProblem => ({ ...from, ...wish });

const unlimited = (problem: PlanProblem, id: string): PlanProblem => ({
  ...problem,
  nodes: problem.nodes.map(({ maxRanks, ...node }) =>
    node.id === id || maxRanks === undefined ? node : { ...node, maxRanks },
  ),
});
