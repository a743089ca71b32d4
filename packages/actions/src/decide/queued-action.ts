import { type Choices, convexHull, isUnitConvex } from "../arrange/choices.ts";

/** The scalable side of an action, with what the scheduler would otherwise derive at every decision. */
export type Elastic = {
  readonly resource: string;
  readonly choices: Choices;
  readonly unitConvex: boolean;
  /** indices of the choices on the convex hull of the durations */
  readonly hull: readonly number[];
  /** atPower[e]: the choice with the most units not above 2^e, or the first; the last entry holds for all above */
  readonly atPower: Uint16Array;
};

/** A waiting action as the scheduler sees it. */
export type QueuedAction = {
  readonly id: string;
  /** least units of every resource it takes, the key resource included */
  readonly demands: readonly (readonly [resource: string, units: number])[];
  /** absent when it does not scale, or when elasticity or duration is unknown: it then gets its least units */
  readonly elastic: Elastic | undefined;
  /** at its least units; undefined when unknown */
  readonly seconds: number | undefined;
  /** since it was submitted; bounds how long a policy may let it wait for more units */
  readonly waitedSeconds?: number | undefined;
};

export function elasticOf(resource: string, choices: Choices): Elastic {
  const unitConvex = isUnitConvex(choices);
  const hull = unitConvex ? choices.units.map((_, i) => i) : convexHull(choices);
  const powers = Math.ceil(Math.log2(choices.units[choices.units.length - 1]!)) + 1;
  const atPower = Uint16Array.from({ length: powers }, (_, e) => choiceUpTo(choices, 2 ** e));
  return { resource, choices, unitConvex, hull, atPower };
}

/** The choice with the most units not above `limit`, or the first. */
export function choiceUpTo({ units }: Choices, limit: number): number {
  let low = 0;
  let high = units.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (units[middle]! <= limit) low = middle;
    else high = middle - 1;
  }
  return low;
}
