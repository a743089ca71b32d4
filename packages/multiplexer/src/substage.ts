import { z } from "zod";

const seconds = z.number().positive();
export const slowdown = z.number().positive();
const memoryShare = z.number().nonnegative();

/** A stretch of one stage of one pipeline, on one worker, with one resource profile (JigsawRL §4.1). */
export const SubStage = z.strictObject({
  id: z.string().min(1),
  pipeline: z.string().min(1),
  /** null: the CPU, which runs any number at once */
  worker: z.int().nonnegative().nullable(),
  type: z.string().min(1),
  /** seconds alone, at factor 1 */
  dur: seconds,
  /** one memory share at factor 1 */
  mem: memoryShare.optional(),
  /** [memory share, factor by which it is slower then] each */
  memOptions: z
    .array(z.tuple([memoryShare, slowdown]))
    .min(1)
    .optional(),
  /** ids of sub-stages, of any pipeline, that must have ended */
  deps: z.array(z.string()).default([]),
});
export type SubStage = z.infer<typeof SubStage>;

/** [memory share, factor] of each way to run it; the CPU has one. */
export function optionsOf({ worker, mem, memOptions }: SubStage): readonly (readonly [number, number])[] {
  return worker === null ? [[0, 1]] : (memOptions ?? [[mem ?? 0, 1]]);
}

/** Memory shares are compared with this relative slack. */
export const withSlack = (memory: number): number => memory * (1 + 1e-9);
