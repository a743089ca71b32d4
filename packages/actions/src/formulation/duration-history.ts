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
  observe(kind: string, seconds: number, units = 1, elasticity?: Elasticity, tenant?: string): void {
    const efficiency = elasticity === undefined ? 1 / units : (efficiencyAt(elasticity, units) ?? 1 / units);
    const oneUnit = seconds * efficiency * units;
    const key = keyOf(kind, tenant);
    const past = this.#past.get(key) ?? { count: 0, mean: 0 };
    past.count++;
    past.mean += (oneUnit - past.mean) / Math.min(past.count, this.#window);
    this.#past.set(key, past);
  }

  /** Seconds on one unit; undefined before the first sample. */
  estimate(kind: string, tenant?: string): number | undefined {
    return this.#past.get(keyOf(kind, tenant))?.mean;
  }

  count(kind: string, tenant?: string): number {
    return this.#past.get(keyOf(kind, tenant))?.count ?? 0;
  }
}

/** What one tenant calls a kind says nothing of what another does. */
const keyOf = (kind: string, tenant = "default"): string => `${tenant}\0${kind}`;
