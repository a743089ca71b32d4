/**
 * What one task may receive and how long it then takes. `units` ascend and are distinct, `seconds` strictly descend:
 * whatever costs more units without being faster has been dropped, so that the first choice is always the cheapest
 * and the last the fastest.
 */
export type Choices = {
  readonly id: string;
  readonly units: readonly number[];
  readonly seconds: readonly number[];
};

/** Sorts the pairs and drops those that another one dominates. Equal units keep the faster pair. */
export function toChoices(id: string, units: readonly number[], seconds: readonly number[]): Choices {
  let ordered = true;
  for (let i = 1; i < units.length && ordered; i++)
    ordered = units[i]! > units[i - 1]! && seconds[i]! < seconds[i - 1]!;
  if (ordered) return { id, units, seconds };
  const order = units.map((_, i) => i).sort((a, b) => units[a]! - units[b]! || seconds[a]! - seconds[b]!);
  const keptUnits: number[] = [];
  const keptSeconds: number[] = [];
  for (const i of order) {
    if (keptSeconds.length > 0 && seconds[i]! >= keptSeconds[keptSeconds.length - 1]!) continue;
    keptUnits.push(units[i]!);
    keptSeconds.push(seconds[i]!);
  }
  return { id, units: keptUnits, seconds: keptSeconds };
}

/** Rounding of `T / (E(m) * m)` may bend a straight line by this share of the duration. */
const convexSlack = 1e-12;

/** Whether each further unit gains at most as much per unit as the one before. */
export function isConvex({ units, seconds }: Choices): boolean {
  for (let i = 2; i < units.length; i++) {
    const before = (seconds[i - 2]! - seconds[i - 1]!) / (units[i - 1]! - units[i - 2]!);
    const after = (seconds[i - 1]! - seconds[i]!) / (units[i]! - units[i - 1]!);
    if (after > before + convexSlack * seconds[i - 2]!) return false;
  }
  return true;
}

/** Whether the choices are convex and step by one unit at a time: marginal gain alone is then exact, for any prefix. */
export function isUnitConvex(choices: Choices): boolean {
  const { units } = choices;
  return units[units.length - 1]! - units[0]! === units.length - 1 && isConvex(choices);
}

/** Indices of the lower convex hull of the choices; the first and the last choice are always on it. */
export function convexHull({ units, seconds }: Pick<Choices, "units" | "seconds">): number[] {
  const hull: number[] = [];
  for (let i = 0; i < units.length; i++) {
    while (hull.length >= 2) {
      const a = hull[hull.length - 2]!;
      const b = hull[hull.length - 1]!;
      const ab = (seconds[a]! - seconds[b]!) * (units[i]! - units[b]!);
      const bi = (seconds[b]! - seconds[i]!) * (units[b]! - units[a]!);
      if (ab > bi) break;
      hull.pop();
    }
    hull.push(i);
  }
  return hull;
}
