import { z } from "zod";

/**
 * Weights that a trainer's process has in the module that it trains, for engines that have attached to that process: they compute with
 * the same module, and nothing is moved.
 */
export const SharedWeights = z.strictObject({
  /** tells the process from all others, of earlier attempts included */
  process: z.string().min(1).max(100),
  /** as published; the process may have taken further steps since */
  policyVersion: z.int().nonnegative(),
});
export type SharedWeights = z.infer<typeof SharedWeights>;
