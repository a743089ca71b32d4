import { z } from "zod";

/** §4.1: forward passes, by the tokens of each, cut where the bucket changes for good. */
export const SegmentProblem = z.strictObject({
  op: z.literal("segment"),
  tokens: z.array(z.number().nonnegative()),
  edges: z
    .array(z.number())
    .refine((edges) => edges.every((edge, i) => i === 0 || edges[i - 1]! < edge), "expected ascending edges")
    .default([128, 1024]),
  /** passes in a row that a bucket must hold before it counts */
  stable: z.int().positive().default(10),
});
export type SegmentProblem = z.infer<typeof SegmentProblem>;

/** `end` is exclusive; a bucket is the number of edges that a pass's tokens reach. */
export type Segment = { readonly bucket: number; readonly start: number; readonly end: number };

export function segment({ tokens, edges, stable }: Omit<SegmentProblem, "op">): Segment[] {
  const bucketOf = (count: number): number => edges.filter((edge) => edge <= count).length;
  const segments: Segment[] = [];
  if (tokens.length === 0) return segments;
  let bucket = bucketOf(tokens[0]!);
  let start = 0;
  let [candidate, since] = [bucket, 0];
  for (const [i, count] of tokens.entries()) {
    const here = bucketOf(count);
    if (here !== candidate) [candidate, since] = [here, i];
    if (candidate === bucket || i - since + 1 < stable) continue;
    segments.push({ bucket, start, end: since });
    [bucket, start] = [candidate, since];
  }
  return [...segments, { bucket, start, end: tokens.length }];
}
