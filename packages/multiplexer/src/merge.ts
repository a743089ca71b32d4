import { z } from "zod";

const seconds = z.number().nonnegative();
const factor = z.number().positive();
const duration = z.number().positive();

/** §4.3: whether the long tails of one rollout should move to one of its workers. */
export const MergeProblem = z
  .strictObject({
    op: z.literal("merge"),
    tails: z
      .array(
        z.strictObject({
          /** seconds of the tail alone, and its slowdown beside its partner */
          T: duration,
          s: factor,
          /** the same of the sub-stage beside it; 0 seconds when there is none */
          partnerT: seconds,
          partnerS: factor,
          /** seconds to move this tail elsewhere */
          migrate: seconds,
        }),
      )
      .min(1),
    /** seconds of all tails together, for every target or by target */
    mergedT: z.union([duration, z.array(duration)]),
    /** slowdown of the target's partner beside all tails */
    partnerSOnMerged: z.union([factor, z.array(factor)]),
  })
  .superRefine((problem, context) => {
    for (const key of ["mergedT", "partnerSOnMerged"] as const) {
      const value = problem[key];
      if (typeof value === "number" || value.length === problem.tails.length) continue;
      context.addIssue({
        code: "custom",
        path: [key],
        message: `expected one number, or one a tail, ${problem.tails.length} in all`,
      });
    }
  });
export type MergeProblem = z.infer<typeof MergeProblem>;

export type MergeRow = {
  readonly target: number;
  readonly origin: number;
  readonly migrated: number;
  /** seconds saved */
  readonly delta: number;
};

/** Savings are the same within this. */
const sameWithin = 1e-12;

/** `best`: the target that saves the most, null when none saves anything; `delta`: what that target would save. */
export function merge({ tails, mergedT, partnerSOnMerged }: Omit<MergeProblem, "op">): {
  readonly rows: readonly MergeRow[];
  readonly best: number | null;
  readonly delta: number;
} {
  const at = (value: number | readonly number[], target: number): number =>
    typeof value === "number" ? value : value[target]!;
  const origin =
    Math.max(...tails.map(({ T, s }) => s * T)) +
    Math.max(...tails.map(({ partnerT, partnerS }) => partnerS * partnerT));
  const rows = tails.map(({ partnerT }, target): MergeRow => {
    const others = tails.filter((_, i) => i !== target);
    const moves = others.reduce((sum, { migrate }) => sum + migrate, 0);
    const partners = Math.max(at(partnerSOnMerged, target) * partnerT, ...others.map((other) => other.partnerT));
    const migrated = at(mergedT, target) + moves + partners;
    return { target, origin, migrated, delta: origin - migrated };
  });
  const largest = rows.reduce((best, row) => (row.delta > best.delta + sameWithin ? row : best));
  return { rows, best: largest.delta > 0 ? largest.target : null, delta: largest.delta };
}
