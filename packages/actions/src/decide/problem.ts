import { type Problem, readProblem, type SolveOptions, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import { toChoices } from "../arrange/choices.ts";
import { FreeChunks } from "../arrange/problem.ts";
import { type Decision, decide, type Selected } from "./decide.ts";
import { type Policy, policies } from "./policies.ts";
import { elasticOf, type QueuedAction } from "./queued-action.ts";
import type { ResourceState } from "./resource-state.ts";

const seconds = z.number().nonnegative();

const Resource = z
  .strictObject({
    free: z.number().nonnegative().optional(),
    /** free buddy intervals, instead of free */
    chunks: FreeChunks.optional(),
    busy: z.array(z.strictObject({ units: z.number().nonnegative(), endsInSeconds: seconds })).default([]),
  })
  .refine((r) => (r.free === undefined) !== (r.chunks === undefined), {
    path: ["free"],
    message: "give either free (a number of units) or chunks",
  });

const Waiting = z
  .strictObject({
    id: z.string().min(1),
    cost: z.record(
      z.string().min(1),
      z.union([z.number().nonnegative(), z.array(z.int().positive()).min(1).max(65535)]),
    ),
    key: z.string().optional(),
    /** one for each number of the key's list; a single number where nothing scales */
    seconds: z.union([seconds, z.array(seconds).min(1)]).optional(),
  })
  .superRefine((action, context) => {
    const issue = (path: (string | number)[], message: string): void => {
      context.addIssue({ code: "custom", path, message });
    };
    for (const [resource, amount] of Object.entries(action.cost))
      if (Array.isArray(amount) && resource !== action.key)
        issue(["cost", resource], "only the key resource takes a list; name it as key or give one number");
    if (action.key === undefined) {
      if (Array.isArray(action.seconds) && action.seconds.length > 1)
        issue(["seconds"], "a list of seconds needs key, the resource it goes with");
      return;
    }
    const amount = action.cost[action.key];
    if (amount === undefined) {
      issue(["key"], `is one of the resources in cost: ${Object.keys(action.cost).join(", ") || "none"}`);
      return;
    }
    const counts = Array.isArray(amount) ? amount : [amount];
    if (!counts.every((units) => Number.isInteger(units) && units > 0))
      issue(["cost", action.key], "the key resource takes whole units, at least one");
    if (new Set(counts).size !== counts.length) issue(["cost", action.key], "unit counts are distinct");
    const given = action.seconds === undefined || Array.isArray(action.seconds) ? action.seconds : [action.seconds];
    if (given !== undefined && given.length !== counts.length)
      issue(["seconds"], `needs one entry for each of the ${counts.length} allowed numbers of '${action.key}'`);
  });

/** One decision of the scheduler (ARL-Tangram Algorithm 1). */
export const ActionsProblem = z
  .strictObject({
    policy: z.enum(policies).default("unit-aware"),
    depth: z.int().positive().default(2),
    /** units of `fixed-dop` */
    dop: z.int().positive().default(4),
    order: z.enum(["prefix", "per-resource"]).default("prefix"),
    resources: z.record(z.string().min(1), Resource),
    waiting: z.array(Waiting),
  })
  .superRefine((problem, context) => {
    const ids = new Set<string>();
    problem.waiting.forEach((action, i) => {
      if (ids.has(action.id))
        context.addIssue({ code: "custom", path: ["waiting", i, "id"], message: "ids are distinct" });
      ids.add(action.id);
      for (const resource of Object.keys(action.cost))
        if (!Object.hasOwn(problem.resources, resource))
          context.addIssue({
            code: "custom",
            path: ["waiting", i, "cost", resource],
            message: `is one of the resources: ${Object.keys(problem.resources).join(", ") || "none"}`,
          });
    });
  });
export type ActionsProblem = z.infer<typeof ActionsProblem>;

export type ActionsAnswer = {
  readonly selected: readonly Pick<Selected, "id" | "allocation">[];
  /** estimated sum of completion times, seconds */
  readonly objective: number;
  readonly stats: {
    readonly milliseconds: number;
    readonly policy: Policy;
    readonly candidates: number;
    readonly evaluations: number;
  };
};

/** A method names a policy and overrides the input's. Throws `problem.invalid`. */
export function solveActions(input: unknown, options: SolveOptions = {}): ActionsAnswer {
  const { method, nowMs } = options;
  if (method !== undefined && !policies.some((p) => p === method)) throw unknownMethod(method, policies);
  const problem = readProblem(ActionsProblem, input);
  const policy = (method as Policy | undefined) ?? problem.policy;
  const startedMs = nowMs?.() ?? 0;
  const waiting = problem.waiting.map(toQueued);
  const resources = new Map<string, ResourceState>(
    Object.entries(problem.resources).map(([name, { free, chunks, busy }]) => [
      name,
      { free: free ?? chunks!.reduce((sum, c) => sum + c.size, 0), chunks, busy },
    ]),
  );
  const { depth, dop, order } = problem;
  const decision: Decision = decide(waiting, resources, { policy, depth, dop, order });
  return {
    selected: decision.selected.map(({ id, allocation }) => ({ id, allocation })),
    objective: decision.objective,
    stats: {
      milliseconds: (nowMs?.() ?? 0) - startedMs,
      policy,
      candidates: decision.candidates,
      evaluations: decision.evaluations,
    },
  };
}

function toQueued({ id, cost, key, seconds }: ActionsProblem["waiting"][number]): QueuedAction {
  const demands = Object.entries(cost).map(
    ([resource, amount]) => [resource, Array.isArray(amount) ? Math.min(...amount) : amount] as const,
  );
  const counts = key === undefined ? undefined : cost[key];
  if (key !== undefined && Array.isArray(counts) && Array.isArray(seconds)) {
    const choices = toChoices(id, counts, seconds);
    return { id, demands, elastic: elasticOf(key, choices), seconds: choices.seconds[0] };
  }
  return { id, demands, elastic: undefined, seconds: Array.isArray(seconds) ? seconds[0] : seconds };
}

/** `treadle solve actions`. */
export const actionsProblem: Problem = { schema: ActionsProblem, methods: policies, solve: solveActions };
