/** What a history has learned, as it may be kept in a file, and read by another one: of what was used last, bounded. */
import { z } from "zod";
import { Amount, allowsUnits } from "./action-spec.ts";
import { SavedDuration } from "./duration-history.ts";
import { Elasticity } from "./elasticity.ts";
import { LiveCurveState, mostScale, Scale } from "./live-curve.ts";

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
    believedScale: Scale,
  })
  .refine(
    ({ amount, curve: { pairs, recent, unpaired } }) => {
      const seen = [...pairs.flatMap(({ few, many }) => [few, many]), ...recent.map(({ units }) => units)];
      if (unpaired !== undefined) seen.push(unpaired.units);
      return [...new Set(seen)].every((units) => allowsUnits(amount, units));
    },
    { path: ["curve"], message: "is of units that `amount` allows" },
  );
export type SavedCurve = z.infer<typeof SavedCurve>;

export const SavedHistory = z.strictObject({
  durations: z.array(SavedDuration).max(mostDurations),
  curves: z.array(SavedCurve).max(mostCurves),
});
export type SavedHistory = z.infer<typeof SavedHistory>;

/** Without what no file can say, such as endless seconds: nothing else of it can be other than what is read. */
export function savedHistory(durations: readonly SavedDuration[], curves: readonly SavedCurve[]): SavedHistory {
  return {
    durations: durations.slice(-mostDurations).filter(({ mean }) => Number.isFinite(mean)),
    curves: curves.slice(-mostCurves).filter(isReadable),
  };
}

const isScale = (scale: number): boolean => scale > 0 && scale <= mostScale;

function isReadable({ curve, believed, believedScale }: SavedCurve): boolean {
  const { pairs, serialShare = 0, scale } = curve;
  const numbers = [serialShare, ...pairs.map(({ change }) => change)];
  if (believed.type === "seconds") numbers.push(...believed.points.map(({ seconds }) => seconds));
  if (believed.type === "amdahl") numbers.push(believed.serialShare);
  return isScale(scale) && isScale(believedScale) && numbers.every(Number.isFinite);
}
