import { divisorsOf } from "../plan/model.ts";

/** Chunks that the search can choose between differ by no more than this. */
const mostRatio = 3;

/**
 * The batch that is searched for instead: the search cuts a batch into equal chunks (RLinf §3.4), and few of them divide a prime.
 * Ranks take chunks of any size, of which the last may be smaller. Pure.
 */
export function divisibleBatch(batch: number): number {
  const isDivisible = (count: number): boolean =>
    divisorsOf(count).every((each, i, all) => i === 0 || each <= mostRatio * all[i - 1]!);
  let found = batch;
  while (!isDivisible(found)) found++;
  return found;
}
