import { type Problem, readProblem, type SolveOptions, TreadleError, unknownMethod } from "@treadle/contracts";
import { z } from "zod";
import { type Chunk, chunkSizes } from "./buddy.ts";
import { type Choices, isConvex, toChoices } from "./choices.ts";
import { arrangeChunks } from "./chunks.ts";
import { arrangePool, arrangePoolByTable } from "./pool.ts";

export const ChunkInput = z
  .strictObject({
    node: z.int().nonnegative(),
    start: z.int().nonnegative(),
    size: z.union(chunkSizes.map((size) => z.literal(size))),
  })
  .refine((chunk) => chunk.start % chunk.size === 0, {
    path: ["start"],
    message: "a chunk starts at a multiple of its size",
  });

/** Refuses chunks of one node that share a device. */
export const FreeChunks = z.array(ChunkInput).superRefine((chunks, context) => {
  const seen = new Set<string>();
  chunks.forEach((chunk, i) => {
    for (let device = chunk.start; device < chunk.start + chunk.size; device++) {
      const name = `${chunk.node}/${device}`;
      if (seen.has(name)) {
        context.addIssue({
          code: "custom",
          path: [i],
          message: `device ${device} of node ${chunk.node} is in two chunks`,
        });
        return;
      }
      seen.add(name);
    }
  });
});

export const ArrangeTask = z
  .strictObject({
    id: z.string().min(1),
    /** allowed unit counts, in any order */
    units: z.array(z.int().positive()).min(1).max(65535),
    /** seconds at each of `units` */
    seconds: z.array(z.number().nonnegative()).min(1),
  })
  .refine((task) => task.units.length === task.seconds.length, {
    path: ["seconds"],
    message: "seconds needs one entry for each of units",
  })
  .refine((task) => new Set(task.units).size === task.units.length, {
    path: ["units"],
    message: "unit counts are distinct",
  });

/** DPArrange (ARL-Tangram §4.2, Algorithm 3): the sum of seconds over all tasks is least. Exactly one of both pools. */
export const ArrangeProblem = z
  .strictObject({
    free: z.int().nonnegative().optional(),
    chunks: FreeChunks.optional(),
    tasks: z.array(ArrangeTask),
  })
  .refine((p) => (p.free === undefined) !== (p.chunks === undefined), {
    path: ["free"],
    message: "give either free (a number of units) or chunks",
  })
  .refine((p) => new Set(p.tasks.map((t) => t.id)).size === p.tasks.length, {
    path: ["tasks"],
    message: "ids of tasks are distinct",
  });
export type ArrangeProblem = z.infer<typeof ArrangeProblem>;

export type ArrangeAnswer = {
  readonly feasible: boolean;
  /** null when infeasible */
  readonly totalSeconds: number | null;
  /** units of each task; null when infeasible */
  readonly allocation: Readonly<Record<string, number>> | null;
  /** devices of each task; null without chunks, or when infeasible */
  readonly placement: Readonly<Record<string, Chunk>> | null;
  readonly stats: { readonly milliseconds: number; readonly method: string; readonly work: number };
};

/** The first picks whichever is fastest; all are exact. */
export const arrangeMethods = ["auto", "dp", "greedy"] as const;

/** Throws `problem.invalid`; also for `greedy` where a task is not convex, or with chunks. */
export function solveArrange(input: unknown, options: SolveOptions = {}): ArrangeAnswer {
  const { method = arrangeMethods[0], nowMs } = options;
  if (method !== "auto" && method !== "dp" && method !== "greedy") throw unknownMethod(method, arrangeMethods);
  const { free, chunks, tasks } = readProblem(ArrangeProblem, input);
  const startedMs = nowMs?.() ?? 0;
  const choices = tasks.map((t) => toChoices(t.id, t.units, t.seconds));
  if (method === "greedy") refuseGreedy(choices, chunks !== undefined);
  const answer = (
    used: string,
    work: number,
    rest?: Pick<ArrangeAnswer, "totalSeconds" | "allocation" | "placement">,
  ) => ({
    feasible: rest !== undefined,
    ...(rest ?? { totalSeconds: null, allocation: null, placement: null }),
    stats: { milliseconds: (nowMs?.() ?? 0) - startedMs, method: used, work },
  });
  const allocationOf = (index: Int32Array): Record<string, number> =>
    Object.fromEntries(choices.map((c, i) => [c.id, c.units[index[i]!]!]));
  if (chunks !== undefined) {
    const arranged = arrangeChunks(choices, chunks);
    if (arranged === undefined) return answer("dp", 0);
    return answer("dp", arranged.work, {
      totalSeconds: arranged.totalSeconds,
      allocation: allocationOf(arranged.index),
      placement: Object.fromEntries(choices.map((c, i) => [c.id, arranged.placement[i]!])),
    });
  }
  const arranged = method === "dp" ? arrangePoolByTable(choices, free!) : arrangePool(choices, free!);
  if (arranged === undefined) return answer(method === "dp" ? "dp" : "greedy", 0);
  return answer(arranged.method, arranged.work, {
    totalSeconds: arranged.totalSeconds,
    allocation: allocationOf(arranged.index),
    placement: null,
  });
}

function refuseGreedy(tasks: readonly Choices[], chunked: boolean): void {
  const refuse = (path: string, why: string): never => {
    throw new TreadleError("problem.invalid", `${path}: ${why}; use method 'dp'`, { details: { path } });
  };
  if (chunked) refuse("method", "'greedy' is exact for a pool of free units only, not for chunks");
  tasks.forEach((task, i) => {
    if (!isConvex(task))
      refuse(`tasks[${i}].seconds`, `'greedy' needs durations convex in the units, '${task.id}' is not`);
  });
}

/** `treadle solve arrange`. */
export const arrangeProblem: Problem = { schema: ArrangeProblem, methods: arrangeMethods, solve: solveArrange };
