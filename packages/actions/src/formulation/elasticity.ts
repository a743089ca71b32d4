import { z } from "zod";

const efficiency = z.number().positive().max(1);

/**
 * How an action gains from units of its key resource (ARL-Tangram §4.1, Eq. 1): on m units it lasts T / (E(m) * m)
 * seconds, where T is its duration on one unit and 0 < E(m) <= 1.
 *
 * - `amdahl`: a share of the work stays serial, E(m) = 1 / (serialShare * m + 1 - serialShare);
 * - `power`: T / m^exponent;
 * - `table`: E at some m, linear between them and constant outside;
 * - `seconds`: measured seconds by units, for exactly these units; it needs no duration;
 * - `function`: E itself, for callers in the same process.
 */
export const Elasticity = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("amdahl"), serialShare: z.number().min(0).max(1) }),
  z.strictObject({ type: z.literal("power"), exponent: z.number().min(0).max(1) }),
  z.strictObject({
    type: z.literal("table"),
    points: z
      .array(z.strictObject({ units: z.int().positive(), efficiency }))
      .min(1)
      .refine((points) => points.every((p, i) => i === 0 || p.units > points[i - 1]!.units), {
        message: "points ascend in units",
      }),
  }),
  z.strictObject({
    type: z.literal("seconds"),
    points: z
      .array(z.strictObject({ units: z.int().positive(), seconds: z.number().nonnegative() }))
      .min(1)
      .refine((points) => new Set(points.map((p) => p.units)).size === points.length, {
        message: "units are distinct",
      }),
  }),
  z.strictObject({
    type: z.literal("function"),
    efficiency: z.custom<(units: number) => number>((f) => typeof f === "function", "a function of the units"),
  }),
]);
export type Elasticity = z.infer<typeof Elasticity>;

/** E(m); undefined for `seconds`, which has no single-unit duration to relate to. Not below 1e-9. */
export function efficiencyAt(elasticity: Elasticity, units: number): number | undefined {
  switch (elasticity.type) {
    case "amdahl":
      return 1 / (elasticity.serialShare * units + 1 - elasticity.serialShare);
    case "power":
      return units ** (elasticity.exponent - 1);
    case "table":
      return interpolate(elasticity.points, units);
    case "function":
      return Math.min(1, Math.max(1e-9, elasticity.efficiency(units)));
    case "seconds":
      return undefined;
  }
}

function interpolate(points: readonly { units: number; efficiency: number }[], units: number): number {
  const after = points.findIndex((p) => p.units >= units);
  if (after === -1) return points[points.length - 1]!.efficiency;
  const high = points[after]!;
  if (after === 0 || high.units === units) return high.efficiency;
  const low = points[after - 1]!;
  return low.efficiency + ((high.efficiency - low.efficiency) * (units - low.units)) / (high.units - low.units);
}

/** Seconds on m units, given the seconds on one; undefined where nothing is known. */
export function secondsAt(
  elasticity: Elasticity,
  units: number,
  oneUnitSeconds: number | undefined,
): number | undefined {
  if (elasticity.type === "seconds") return elasticity.points.find((p) => p.units === units)?.seconds;
  return oneUnitSeconds === undefined ? undefined : oneUnitSeconds / (efficiencyAt(elasticity, units)! * units);
}
