import { type Elasticity, efficiencyAt } from "./elasticity.ts";

type Past = { count: number; mean: number };

/**
 * Durations of earlier actions per kind, brought to one unit by their elasticity, as a mean that forgets: the first
 * `window` samples count alike, later ones 1/window each. Pure state; the caller says what it saw.
 */
export class DurationHistory {
  readonly #window: number;
  readonly #past = new Map<string, Past>();

  constructor(window = 64) {
    this.#window = window;
  }

  /** Samples taken while others used the same cores mislead; the caller leaves those out. */
  observe(kind: string, seconds: number, units = 1, elasticity?: Elasticity): void {
    const efficiency = elasticity === undefined ? 1 / units : (efficiencyAt(elasticity, units) ?? 1 / units);
    const oneUnit = seconds * efficiency * units;
    const past = this.#past.get(kind) ?? { count: 0, mean: 0 };
    past.count++;
    past.mean += (oneUnit - past.mean) / Math.min(past.count, this.#window);
    this.#past.set(kind, past);
  }

  /** Seconds on one unit; undefined before the first sample. */
  estimate(kind: string): number | undefined {
    return this.#past.get(kind)?.mean;
  }

  count(kind: string): number {
    return this.#past.get(kind)?.count ?? 0;
  }
}
