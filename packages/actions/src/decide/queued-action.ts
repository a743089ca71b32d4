import { type Choices, convexHull, isUnitConvex } from "../arrange/choices.ts";

/** The scalable side of an action, with what the scheduler would otherwise derive at every decision. */
export type Elastic = {
  readonly resource: string;
  readonly choices: Choices;
  readonly unitConvex: boolean;
  /** indices of the choices on the convex hull of the durations */
  readonly hull: readonly number[];
  /**
   * At 2e and 2e + 1, units and seconds of the choice with the most units not above 2^e, or of the first; the last two hold for all
   * above. One table, because a decision reads it of a thousand actions.
   */
  readonly atPower: Float64Array;
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
  /** since it was submitted; bounds how long a policy may let it wait for more units when it is first (PL4) */
  readonly waitedSeconds?: number | undefined;
};

class ElasticSide implements Elastic {
  readonly resource: string;
  readonly unitConvex: boolean;
  readonly hull: readonly number[];
  readonly atPower: Float64Array;
  readonly #make: () => Choices;
  #choices: Choices | undefined;

  constructor(resource: string, of: Pick<Elastic, "unitConvex" | "hull" | "atPower">, make: () => Choices) {
    this.resource = resource;
    this.unitConvex = of.unitConvex;
    this.hull = of.hull;
    this.atPower = of.atPower;
    this.#make = make;
  }

  /** Made when asked for: a decision needs them of those that might start, and of the others `atPower`. */
  get choices(): Choices {
    this.#choices ??= this.#make();
    return this.#choices;
  }
}

export function elasticOf(resource: string, choices: Choices): Elastic {
  const unitConvex = isUnitConvex(choices);
  const hull = unitConvex ? choices.units.map((_, i) => i) : convexHull(choices);
  const atPower = powersOf(choices.units, (_, choice) => choices.seconds[choice]!);
  return new ElasticSide(resource, { unitConvex, hull, atPower }, () => choices);
}

/** One whose seconds are those of `shape` times a constant. */
export function similarTo(shape: Elastic, id: string, secondsAt: (units: number) => number): Elastic {
  const { units } = shape.choices;
  const atPower = powersOf(units, secondsAt);
  return new ElasticSide(shape.resource, { ...shape, atPower }, () => ({ id, units, seconds: units.map(secondsAt) }));
}

/** The same on another resource. */
export const elasticOn = (resource: string, elastic: Elastic): Elastic =>
  new ElasticSide(resource, elastic, () => elastic.choices);

function powersOf(units: readonly number[], secondsAt: (units: number, choice: number) => number): Float64Array {
  const powers = Math.ceil(Math.log2(units[units.length - 1]!)) + 1;
  const atPower = new Float64Array(2 * powers);
  for (let e = 0; e < powers; e++) {
    const choice = choiceUpTo({ units }, 2 ** e);
    atPower[2 * e] = units[choice]!;
    atPower[2 * e + 1] = secondsAt(units[choice]!, choice);
  }
  return atPower;
}

/** The choice with the most units not above `limit`, or the first. */
export function choiceUpTo({ units }: Pick<Choices, "units">, limit: number): number {
  let low = 0;
  let high = units.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (units[middle]! <= limit) low = middle;
    else high = middle - 1;
  }
  return low;
}
