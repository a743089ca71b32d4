/** What the benchmarks put into channels. The schemas are found by workers in this module. */
import { z } from "zod";

export { EpisodeGroup, Prompt } from "@treadle/contracts";

/** Like an environment's step: a few fields, the text pads it to a size. */
export const SmallItem = z.object({
  id: z.int(),
  reward: z.number(),
  done: z.boolean(),
  text: z.string(),
});
export type SmallItem = z.infer<typeof SmallItem>;

export const BulkItem = z.object({ id: z.int(), data: z.instanceof(Float32Array) });
export type BulkItem = z.infer<typeof BulkItem>;

/** One item of a pipeline that only sleeps. */
export const Chunk = z.object({ id: z.int() });
export type Chunk = z.infer<typeof Chunk>;

/** An item whose fields, names included, are about `sizeBytes` when written as JSON. */
export function smallItem(id: number, sizeBytes: number): SmallItem {
  const fixed = JSON.stringify({ id, reward: 0.5, done: false, text: "" }).length;
  return { id, reward: 0.5, done: false, text: "x".repeat(Math.max(0, sizeBytes - fixed)) };
}
