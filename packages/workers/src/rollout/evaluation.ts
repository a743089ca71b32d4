/** How good a policy is on problems that it never trains on. */
import { z } from "zod";

/** Share of greedy completions with full reward, over `total` prompts of this rank. */
export type EvaluationCount = { readonly correct: number; readonly total: number };

/** How often a policy is judged on problems that it never trains on, and on how many. */
export const EvaluationConfig = z.strictObject({
  /** held out: they judge, and choose nothing */
  problems: z.int().positive(),
  /** others: they choose the checkpoint that is kept as the best, and when imitation ends */
  validationProblems: z.int().positive(),
  everySteps: z.int().positive(),
});

/** Over what all ranks counted. */
export const accuracyOf = (counts: readonly EvaluationCount[]): number =>
  counts.reduce((sum, count) => sum + count.correct, 0) / counts.reduce((sum, count) => sum + count.total, 0);
