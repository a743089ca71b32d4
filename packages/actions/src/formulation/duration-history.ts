import { z } from "zod";
import { type Elasticity, efficiencyAt } from "./elasticity.ts";
import { KeptByTenant, mostKinds } from "./kept-by-tenant.ts";

type Past = { count: number; mean: number };

/** of a kind of a tenant */
export const SavedDuration = z.strictObject({
  tenant: z.string(),
  kind: z.string(),
  count: z.int().positive(),
  /** seconds on one unit */
  mean: z.number().nonnegative(),
});
export type SavedDuration = z.infer<typeof SavedDuration>;

/**
 * Durations of earlier actions per kind and tenant: what one calls a kind says nothing of what another does. They are brought to one
 * unit by their elasticity, and kept as a mean that forgets: the first `window` samples count alike, later ones 1/window each. Pure
 * state; the caller says what it saw.
 */
export class DurationHistory {
  readonly #window: number;
  readonly #past = new KeptByTenant<Past>(mostKinds);

  /** `saved`: what another has learned */
  constructor(window = 64, saved: readonly SavedDuration[] = []) {
    this.#window = window;
    for (const { tenant, kind, count, mean } of saved) this.#past.use(tenant, kind, () => ({ count, mean }));
  }

  saved(): SavedDuration[] {
    return [...this.#past.inTurn()].map(([tenant, kind, past]) => ({ tenant, kind, ...past }));
  }

  /** Samples taken while others used the same cores mislead; the caller leaves those out. */
  observe(kind: string, seconds: number, units = 1, elasticity?: Elasticity, tenant = "default"): void {
    const efficiency = elasticity === undefined ? 1 / units : (efficiencyAt(elasticity, units) ?? 1 / units);
    const oneUnit = seconds * efficiency * units;
    const past = this.#past.use(tenant, kind, () => ({ count: 0, mean: 0 }));
    past.count++;
    past.mean += (oneUnit - past.mean) / Math.min(past.count, this.#window);
  }

  /** Seconds on one unit; undefined before the first sample. */
  estimate(kind: string, tenant = "default"): number | undefined {
    return this.#past.get(tenant, kind)?.mean;
  }

  get numForgotten(): number {
    return this.#past.numForgotten;
  }

  count(kind: string, tenant = "default"): number {
    return this.#past.get(tenant, kind)?.count ?? 0;
  }
}
