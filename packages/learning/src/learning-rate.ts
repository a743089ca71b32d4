/** The learning rate of each step of a run. */
import { z } from "zod";

/** A warm-up to `peak`, then a decay to `final`. */
export const LearningRateSchedule = z
  .strictObject({
    /** the largest: that of the first step after the warm-up */
    peak: z.number().positive(),
    /** the one that a step after the last would have */
    final: z.number().nonnegative().default(0),
    /** how it falls from `peak` to `final`; `cosine`: half a period (SGDR, arXiv:1608.03983) */
    decay: z.enum(["linear", "cosine"]).default("linear"),
    /** first steps of the run, over which it rises evenly: with 3 of them to a quarter, a half and three quarters of `peak` */
    warmupSteps: z.int().nonnegative().default(0),
  })
  .refine(({ peak, final }) => final <= peak, { path: ["final"], error: "at most peak, as a rate falls" });

/** One number for all steps, or a schedule. */
export const LearningRateConfig = z.union([z.number().positive(), LearningRateSchedule]);
export type LearningRateConfig = z.infer<typeof LearningRateConfig>;

/**
 * The rate of `step`, from 1 on, in a run of `steps`. No step has 0: the warm-up starts above it and reaches `peak`
 * with the step after it, and `final` comes after the last. A run that is all warm-up never reaches it.
 */
export function learningRateAt(config: LearningRateConfig, step: number, steps: number): number {
  if (typeof config === "number") return config;
  const { peak, final, decay, warmupSteps } = config;
  if (step <= warmupSteps) return (peak * step) / (warmupSteps + 1);
  const share = (step - 1 - warmupSteps) / Math.max(1, steps - warmupSteps);
  const fallen = decay === "linear" ? share : (1 - Math.cos(Math.PI * share)) / 2;
  return peak + fallen * (final - peak);
}
