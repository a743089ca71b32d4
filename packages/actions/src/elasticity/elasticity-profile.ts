import { z } from "zod";
import { convexHull, isConvex, toChoices } from "../arrange/choices.ts";
import type { Elasticity } from "../formulation/elasticity.ts";

const Sample = z.strictObject({
  units: z.int().positive(),
  /** median of the accepted runs; of all of them where every one was contended */
  seconds: z.number().positive(),
  accepted: z.int().nonnegative(),
  /** runs during which others used the cores */
  rejected: z.int().nonnegative(),
  contended: z.boolean(),
});
export type ElasticitySample = z.infer<typeof Sample>;

/** What was measured of one kind of action, as a file. */
export const ElasticityProfile = z.strictObject({
  version: z.literal(1),
  kind: z.string().min(1),
  /** with `{parallel}` where the number of units goes */
  command: z.array(z.string()).min(1),
  driver: z.string(),
  measuredAt: z.iso.datetime(),
  /** ascending in units */
  samples: z
    .array(Sample)
    .min(1)
    .refine((all) => all.every((s, i) => i === 0 || s.units > all[i - 1]!.units), {
      message: "samples ascend in units",
    }),
  /** seconds on one unit: measured, or by the fit */
  duration: z.number().positive(),
  /** E(m) at every measured m */
  elasticity: z.strictObject({
    type: z.literal("table"),
    points: z
      .array(z.strictObject({ units: z.int().positive(), efficiency: z.number().positive().max(1) }))
      .min(1)
      .refine((all) => all.every((point, i) => i === 0 || point.units > all[i - 1]!.units), {
        message: "points ascend in units",
      }),
  }),
  /** Amdahl's law through the samples, least squares */
  fit: z.strictObject({ serialShare: z.number().min(0).max(1), relativeError: z.number().nonnegative() }),
  /** whether each further unit gains no more than the one before: then the fast arrangement is exact */
  convex: z.boolean(),
  /** unit numbers that are never worth taking, as fewer are as fast or a mix of others is faster */
  wasteful: z.array(z.int().positive()),
});
export type ElasticityProfile = z.infer<typeof ElasticityProfile>;

/** Everything that follows from the samples. */
export function analyseSamples(
  samples: readonly ElasticitySample[],
): Pick<ElasticityProfile, "duration" | "elasticity" | "fit" | "convex" | "wasteful"> {
  const fit = fitAmdahl(samples);
  const duration = samples[0]!.units === 1 ? samples[0]!.seconds : fit.duration;
  const points = samples.map(({ units, seconds }) => ({
    units,
    // Caches and noise may make m units more than m times as fast; E(m) is at most 1 (Eq. 1).
    efficiency: Math.min(1, duration / (seconds * units)),
  }));
  const elasticity: Elasticity & { type: "table" } = { type: "table", points };
  const choices = toChoices(
    "samples",
    samples.map(({ units }) => units),
    samples.map(({ seconds }) => seconds),
  );
  const hull = new Set(convexHull(choices).map((i) => choices.units[i]!));
  return {
    duration,
    elasticity,
    fit: { serialShare: fit.serialShare, relativeError: fit.relativeError },
    convex: isConvex(choices),
    wasteful: samples.flatMap(({ units }) => (hull.has(units) ? [] : units)),
  };
}

/** seconds = duration · (s + (1 - s) / units): linear in 1 / units, by least squares with s kept within 0 to 1. */
function fitAmdahl(samples: readonly ElasticitySample[]): {
  duration: number;
  serialShare: number;
  relativeError: number;
} {
  const n = samples.length;
  const xs = samples.map(({ units }) => 1 / units);
  const ys = samples.map(({ seconds }) => seconds);
  const mean = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / n;
  const [x, y] = [mean(xs), mean(ys)];
  const variance = xs.reduce((sum, value) => sum + (value - x) ** 2, 0);
  const slope = variance === 0 ? 0 : xs.reduce((sum, value, i) => sum + (value - x) * (ys[i]! - y), 0) / variance;
  let serial = y - slope * x;
  let parallel = slope;
  if (parallel < 0) [serial, parallel] = [y, 0];
  if (serial < 0)
    [serial, parallel] = [0, xs.reduce((s, v, i) => s + v * ys[i]!, 0) / xs.reduce((s, v) => s + v * v, 0)];
  const duration = serial + parallel;
  const errors = xs.map((value, i) => Math.abs(serial + parallel * value - ys[i]!) / ys[i]!);
  return { duration, serialShare: Math.min(1, serial / duration), relativeError: Math.max(...errors) };
}
