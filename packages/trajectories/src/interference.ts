import { z } from "zod";

const most = { max: z.int().positive().optional() };

/**
 * How much slower each of k trajectories runs beside the others of its worker (Heddle §5.1): `F(1)` is 1 unless a table
 * says otherwise. `max` is the largest k that a worker holds; above it F is infinite.
 */
export const Interference = z
  .discriminatedUnion("type", [
    /** 1 + slope (k-1) */
    z.strictObject({ type: z.literal("affine"), slope: z.number().nonnegative(), ...most }),
    /** 1 + slope (k-1)^exponent */
    z.strictObject({
      type: z.literal("power"),
      slope: z.number().nonnegative(),
      exponent: z.number().nonnegative(),
      ...most,
    }),
    /** slope `low` up to `knee` trajectories (memory-bound), slope `high` above (compute-bound) */
    z.strictObject({
      type: z.literal("roofline"),
      knee: z.number().min(1),
      low: z.number().nonnegative(),
      high: z.number().nonnegative(),
      ...most,
    }),
    /** values[k-1] is F(k); above: along the last segment, the last value, or infinite */
    z.strictObject({
      type: z.literal("table"),
      values: z.array(z.number().positive()).min(1),
      extend: z.enum(["linear", "clamp", "none"]).default("linear"),
      ...most,
    }),
  ])
  .describe("interference factor F(k)");
export type Interference = z.infer<typeof Interference>;

/** F as a function of k >= 1. It never decreases in k unless a table does; see `neverDecreases`. */
export function interferenceFactor(spec: Interference): (k: number) => number {
  const factor = unbounded(spec);
  const { max } = spec;
  return max === undefined ? factor : (k) => (k > max ? Number.POSITIVE_INFINITY : factor(k));
}

function unbounded(spec: Interference): (k: number) => number {
  if (spec.type === "affine") {
    const { slope } = spec;
    return (k) => 1 + slope * (k - 1);
  }
  if (spec.type === "power") {
    const { slope, exponent } = spec;
    return (k) => (k === 1 ? 1 : 1 + slope * (k - 1) ** exponent);
  }
  if (spec.type === "roofline") {
    const { knee, low, high } = spec;
    return (k) => (k <= knee ? 1 + low * (k - 1) : 1 + low * (knee - 1) + high * (k - knee));
  }
  const { values, extend } = spec;
  const last = values.length;
  const lastValue = values[last - 1]!;
  const step = extend === "linear" && last > 1 ? lastValue - values[last - 2]! : 0;
  const beyond = extend === "none" ? Number.POSITIVE_INFINITY : lastValue;
  return (k) => (k <= last ? values[k - 1]! : beyond + step * (k - last));
}

/** Whether more company is never faster, which the exact methods need (and the paper assumes). */
export function neverDecreases(spec: Interference): boolean {
  return spec.type !== "table" || spec.values.every((value, i) => i === 0 || value >= spec.values[i - 1]!);
}
