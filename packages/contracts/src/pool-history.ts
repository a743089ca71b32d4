/** What happened in a pool of devices, as entries of its history: a file of lines, which a page of all runs is drawn from. */
import { z } from "zod";
import { PoolWait, Work } from "./device-pool.ts";

const run = z.string().min(1).max(200);
const devices = z.array(z.string().max(200)).max(65_536);
const token = z.int().nonnegative();
const why = z.string().max(2000);

/**
 * What the pool decided about a run. `beside` and `after`: it begins beside `others`, or after them, since the policy says so.
 * `yields`: it has to give devices back to `others`. `ended`: it is ended.
 */
export const PoolDecision = z.strictObject({
  type: z.enum(["beside", "after", "yields", "ended"]),
  ...{ run, devices, why },
  others: z.array(run).max(1000),
});
export type PoolDecision = z.infer<typeof PoolDecision>;

/** What keeps devices from other runs, with what computes under it as far as its run has said. */
export const PoolHolding = z.strictObject({ run, token, devices, work: Work.optional() });
export type PoolHolding = z.infer<typeof PoolHolding>;

/** `atMs`: since 1970. What is said of a run or a lease holds until the next entry about it. */
const at = { atMs: z.number() };

export const PoolEntry = z.discriminatedUnion("type", [
  /** which run of the runs' folder it is, where its name does not say so */
  z.strictObject({ type: z.literal("run"), ...at, run, runId: z.string().min(1).max(200) }),
  z.strictObject({ type: z.literal("stage"), ...at, run, stage: z.enum(["queued", "resident", "ending", "gone"]) }),
  PoolHolding.extend({ type: z.literal("holds"), ...at }),
  z.strictObject({ type: z.literal("released"), ...at, token }),
  /** null: it does not wait any more */
  z.strictObject({ type: z.literal("waits"), ...at, run, on: PoolWait.nullable() }),
  z.strictObject({ type: z.literal("decided"), ...at, decision: PoolDecision }),
  /** entries before it are missing: nothing that was said holds any more, and what still is so follows */
  z.strictObject({ type: z.literal("lost"), ...at }),
]);
export type PoolEntry = z.infer<typeof PoolEntry>;
