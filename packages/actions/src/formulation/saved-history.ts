/** What a history has learned, as it may be kept in a file, and read by another one: of what was used last, bounded. */
import { z } from "zod";
import { Amount, allowedUnits } from "./action-spec.ts";
import { SavedDuration } from "./duration-history.ts";
import { Elasticity } from "./elasticity.ts";
import { LiveCurveState } from "./live-curve.ts";

const mostDurations = 65_536;
const mostCurves = 4096;

const SavedCurve = z
  .strictObject({
    tenant: z.string(),
    kind: z.string(),
    /** whose units it is about, and how many of them may be granted */
    resource: z.string(),
    amount: Amount,
    stated: Elasticity,
    /** whether executions were measured in stated seconds */
    hasUnit: z.boolean(),
    curve: LiveCurveState,
    believed: Elasticity,
    believedScale: z.number().positive(),
  })
  .refine(
    ({ amount, curve: { pairs, recent, unpaired } }) => {
      const allowed = new Set(allowedUnits(amount));
      const seen = [...pairs.flatMap(({ few, many }) => [few, many]), ...recent.map(({ units }) => units)];
      return seen.every((units) => allowed.has(units)) && (unpaired === undefined || allowed.has(unpaired.units));
    },
    { path: ["curve"], message: "is of units that `amount` allows" },
  );
export type SavedCurve = z.infer<typeof SavedCurve>;

export const SavedHistory = z.strictObject({
  durations: z.array(SavedDuration).max(mostDurations),
  curves: z.array(SavedCurve).max(mostCurves),
});
export type SavedHistory = z.infer<typeof SavedHistory>;

/** Without what no file can say, such as endless seconds. */
export function savedHistory(durations: readonly SavedDuration[], curves: readonly SavedCurve[]): SavedHistory {
  return {
    durations: durations.slice(-mostDurations).filter((one) => SavedDuration.safeParse(one).success),
    curves: curves.slice(-mostCurves).filter((one) => SavedCurve.safeParse(one).success),
  };
}
