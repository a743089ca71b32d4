import type { Random } from "@treadle/learning";
import { z } from "zod";

/** A sequence to imitate: `mask` is 1 at the tokens to learn. */
export type Demonstration = { readonly tokens: Int32Array; readonly mask: Float32Array };
export const Demonstration: z.ZodType<Demonstration> = z
  .object({
    tokens: z.instanceof(Int32Array),
    mask: z.instanceof(Float32Array),
  })
  .meta({ module: import.meta.url, exportName: "Demonstration" });

/** Supervised steps before reinforcement learning, for a policy whose right answers would be too rare for rewards to teach much soon. */
export const ImitationConfig = z.strictObject({
  /** different problems that are ever demonstrated, however often */
  problems: z.int().positive(),
  learningRate: z.number().positive(),
  /** demonstrations of one update, over all ranks */
  rows: z.int().positive(),
  /** optimiser steps between two looks at the accuracy */
  updates: z.int().positive(),
  /** stops at this accuracy on validation problems: some answers must be right, and room must remain */
  untilAccuracy: z.number().min(0).max(1),
  maxRounds: z.int().positive(),
});
export type ImitationConfig = z.infer<typeof ImitationConfig>;

/** The rows of a round: `updates` times `rows` of the demonstrations, drawn with replacement. */
export function drawDemonstrations<T>(all: readonly T[], { rows, updates }: ImitationConfig, random: Random): T[] {
  return Array.from({ length: rows * updates }, () => all[random.integer(all.length)] as T);
}

export type ImitationOptions = Pick<ImitationConfig, "learningRate" | "rows" | "updates">;
