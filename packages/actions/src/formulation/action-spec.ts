import { z } from "zod";
import { Elasticity } from "./elasticity.ts";

const name = z.string().min(1).max(200);
/** a name, with that of its tenant before it */
const identity = z.string().min(1).max(1000);
/** The most units that a range or a set may name; a range is held as all its numbers. */
const mostUnits = 65_535;
const units = z.int().positive().max(mostUnits);

/** Timers of Node go no further: 24.8 days. */
export const longestTimerMs = 2 ** 31 - 1;

/** One dimension of the cost vector: a fixed amount, a range, or a discrete set. Only the key resource may vary. */
export const Amount = z.union([
  z.number().nonnegative(),
  z.strictObject({ min: units, max: units }).refine((r) => r.min <= r.max, { message: "min is at most max" }),
  z.array(units).min(1).max(mostUnits),
]);
export type Amount = z.infer<typeof Amount>;

/** How long the action takes on one unit of its key resource (or at its fixed cost). */
export const Duration = z.union([
  /** known, seconds */
  z.number().nonnegative(),
  /** estimated from earlier actions of the same kind; unknown until there are some */
  z.literal("history"),
  z.literal("unknown"),
]);

export const Retries = z.strictObject({
  /** further attempts after a retryable failure */
  limit: z.int().nonnegative().max(100).default(0),
  /** wait before the first of them; doubles each time up to a minute */
  backoffMs: z.number().nonnegative().default(100),
});

/**
 * One atomic external invocation (ARL-Tangram §4.1). Cost is a vector over any resource types by name; at most one is
 * the key elasticity resource, and different actions may name different ones.
 */
export const ActionSpec = z
  .strictObject({
    /** unique among the actions that are queued or run; made up when absent */
    id: identity.optional(),
    /** what statistics and duration history are kept by, such as `pytest` or `search` */
    kind: name,
    cost: z.record(name, Amount),
    key: name.optional(),
    elasticity: Elasticity.optional(),
    duration: Duration.default("history"),
    /** what a GPU action needs loaded */
    service: name.optional(),
    /** actions of one trajectory run where its state is */
    trajectory: identity.optional(),
    task: name.default("default"),
    tenant: name.default("default"),
    /** higher goes first; equal priorities are first come, first served */
    priority: z.number().default(0),
    /** of the whole action, queueing and retries included */
    deadlineMs: z.number().positive().max(longestTimerMs).optional(),
    retries: Retries.prefault({}),
  })
  .superRefine((spec, context) => {
    const issue = (path: (string | number)[], message: string): void => {
      context.addIssue({ code: "custom", path, message });
    };
    for (const [resource, amount] of Object.entries(spec.cost)) {
      if (typeof amount !== "number" && resource !== spec.key)
        issue(["cost", resource], `only the key resource may vary; name it as key or give one number`);
    }
    if (spec.key !== undefined && spec.cost[spec.key] === undefined)
      issue(["key"], `is one of the resources in cost: ${Object.keys(spec.cost).join(", ") || "none"}`);
    if (
      spec.key !== undefined &&
      typeof spec.cost[spec.key] === "number" &&
      !(Number.isInteger(spec.cost[spec.key]) && (spec.cost[spec.key] as number) > 0)
    )
      issue(["cost", spec.key], "the key resource takes whole units, at least one");
    if (spec.elasticity !== undefined && spec.key === undefined)
      issue(
        ["elasticity"],
        "says what more units are worth, and no resource may vary; give one in cost a range or a set and name it as key, or leave elasticity out",
      );
    if (spec.elasticity?.type === "seconds" && spec.key !== undefined) {
      const measured = new Set(spec.elasticity.points.map((p) => p.units));
      const missing = allowedUnits(spec.cost[spec.key] ?? 0).filter((u) => !measured.has(u));
      if (missing.length > 0) issue(["elasticity", "points"], `has no seconds for ${missing.join(", ")} units`);
    }
  });
export type ActionSpec = z.infer<typeof ActionSpec>;

export function leastUnits(amount: Amount): number {
  if (typeof amount === "number") return amount;
  return Array.isArray(amount) ? amount.reduce((least, units) => Math.min(least, units)) : amount.min;
}

/** Every amount that is allowed, ascending. */
export function allowedUnits(amount: Amount): number[] {
  if (typeof amount === "number") return [amount];
  if (Array.isArray(amount)) return [...new Set(amount)].sort((a, b) => a - b);
  return Array.from({ length: amount.max - amount.min + 1 }, (_, i) => amount.min + i);
}

/** Without listing them, as ranges and sets may be large. */
export function allowsUnits(amount: Amount, units: number): boolean {
  if (typeof amount === "number") return units === amount;
  if (Array.isArray(amount)) return amount.includes(units);
  return Number.isInteger(units) && units >= amount.min && units <= amount.max;
}

/** The largest amount that is allowed and at most `limit`. */
export function allowedAtMost(amount: Amount, limit: number): number | undefined {
  const most =
    typeof amount === "object" && !Array.isArray(amount)
      ? Math.min(amount.max, Math.floor(limit))
      : [amount].flat().reduce((best, units) => (units <= limit ? Math.max(best, units) : best), -1);
  return most < leastUnits(amount) ? undefined : most;
}

/** The smallest amount that is allowed and at least `limit`. */
export function allowedAtLeast(amount: Amount, limit: number): number | undefined {
  if (typeof amount === "object" && !Array.isArray(amount))
    return limit > amount.max ? undefined : Math.max(amount.min, Math.ceil(limit));
  const least = [amount]
    .flat()
    .reduce((best, units) => (units >= limit ? Math.min(best, units) : best), Number.POSITIVE_INFINITY);
  return least === Number.POSITIVE_INFINITY ? undefined : least;
}
