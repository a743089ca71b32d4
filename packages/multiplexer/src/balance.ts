import { z } from "zod";

/** §4.3: a batch over workers, one of which is slowed by what shares it, so that all end together. */
export const BalanceProblem = z
  .strictObject({
    op: z.literal("balance"),
    total: z.int().nonnegative(),
    workers: z.int().positive().max(65536),
    /** the worker that is slowed */
    target: z.int().nonnegative(),
    slowdown: z.number().positive(),
    /** a batch of b takes a + c · b seconds alone */
    a: z.number().nonnegative().default(0),
    c: z.number().positive().default(1),
  })
  .refine(({ workers, target }) => target < workers, {
    path: ["target"],
    message: "expected one of the workers, from 0",
  });
export type BalanceProblem = z.infer<typeof BalanceProblem>;

export type BalanceAnswer = {
  /** by worker, before rounding */
  readonly real: readonly number[];
  readonly batch: readonly number[];
  readonly timeTarget: number;
  /** of the slowest of the others; 0 when there are none */
  readonly timeOthers: number;
};

/** What rounds up to a whole number counts as one. */
const wholeWithin = 1e-9;

/**
 * With y rows on the target and x elsewhere, a + c·x = slowdown·(a + c·y) and (workers − 1)·x + y = total give
 * y = (total − (workers − 1)·a·(slowdown − 1)/c) / (1 + (workers − 1)·slowdown), kept within 0 and total.
 */
export function balance({ total, workers, target, slowdown, a, c }: Omit<BalanceProblem, "op">): BalanceAnswer {
  const others = workers - 1;
  const even = (total - (others * a * (slowdown - 1)) / c) / (1 + others * slowdown);
  const y = others === 0 ? total : Math.min(total, Math.max(0, even));
  const x = others === 0 ? 0 : (total - y) / others;
  const real = Array.from({ length: workers }, (_, i) => (i === target ? y : x));
  const batch = real.map((rows) => Math.floor(rows + wholeWithin));
  const byRemainder = real
    .map((rows, i) => ({ i, remainder: rows - batch[i]! }))
    .sort((p, q) => (Math.abs(q.remainder - p.remainder) <= wholeWithin ? p.i - q.i : q.remainder - p.remainder));
  const left = total - batch.reduce((sum, rows) => sum + rows, 0);
  for (const { i } of byRemainder.slice(0, left)) batch[i]!++;
  const seconds = (rows: number): number => a + c * rows;
  return {
    real,
    batch,
    timeTarget: slowdown * seconds(batch[target]!),
    timeOthers: Math.max(0, ...batch.filter((_, i) => i !== target).map(seconds)),
  };
}
