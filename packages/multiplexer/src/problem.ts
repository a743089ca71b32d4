import { z } from "zod";
import { firstCircle } from "./dependency-order.ts";
import { mayMeet } from "./may-meet.ts";
import { SubStage, slowdown } from "./substage.ts";

/** Splits mirror one another within this. */
const mirrorTolerance = 1e-9;

/** Sub-stages of several pipelines on shared workers (JigsawRL §4). */
export const MultiplexProblem = z
  .strictObject({
    workers: z.int().nonnegative().max(65536),
    /** memory shares of what runs on a worker add to at most this */
    memory: z.number().positive().default(1),
    /** the shares of a worker's compute that one of two may have; each has its mirror */
    splits: z.array(z.number().gt(0).lt(1)).min(1).default([0.5]),
    /** what `mux` lets share a worker */
    rolloutTypes: z.array(z.string()).default([]),
    /** pair[a][b][k]: slowdown of type a beside type b when a has splits[k] */
    pair: z.record(z.string(), z.record(z.string(), z.array(slowdown))).default({}),
    substages: z.array(SubStage),
    /** decisions of a worker that `lookahead` tries ahead */
    window: z.int().positive().max(16).default(3),
    /** actions that `optimum` tries before it gives up proving */
    limit: z.int().positive().default(1_000_000),
  })
  .superRefine(({ workers, memory, splits, pair, substages }, context) => {
    const refuse = (path: PropertyKey[], message: string): void => {
      context.addIssue({ code: "custom", path, message });
    };
    for (const [k, share] of splits.entries()) {
      const mirror = splits[splits.length - 1 - k]!;
      if (Math.abs(share + mirror - 1) > mirrorTolerance) {
        refuse(["splits", k], `expected a share that adds to 1 with its mirror '${mirror}'`);
      }
    }
    for (const [a, row] of Object.entries(pair)) {
      for (const [b, slowdowns] of Object.entries(row)) {
        if (slowdowns.length !== splits.length) {
          refuse(["pair", a, b], `expected one slowdown a split, ${splits.length} in all`);
        }
      }
    }
    const indexOf = new Map<string, number>();
    for (const [i, { id, worker, mem, memOptions }] of substages.entries()) {
      if (indexOf.has(id)) refuse(["substages", i, "id"], "expected an id that no other sub-stage has");
      else indexOf.set(id, i);
      if (worker !== null && worker >= workers) {
        refuse(["substages", i, "worker"], `expected null or a worker from 0 to ${workers - 1}`);
      }
      if (mem !== undefined && memOptions !== undefined) {
        refuse(["substages", i, "mem"], "expected either 'mem' or 'memOptions', not both");
      }
    }
    let known = true;
    for (const [i, { deps }] of substages.entries()) {
      for (const [j, id] of deps.entries()) {
        if (indexOf.has(id)) continue;
        known = false;
        refuse(["substages", i, "deps", j], "expected the id of a sub-stage");
      }
    }
    if (!known || indexOf.size < substages.length) return;
    const deps = substages.map((substage) => substage.deps.map((id) => indexOf.get(id)!));
    const circle = firstCircle(deps);
    if (circle.length > 0) {
      const names = [...circle, circle[0]!].map((i) => `'${substages[i]!.id}'`).join(" needs ");
      refuse(["substages", circle[0]!, "deps"], `expected no circle, but ${names}`);
      return;
    }
    for (const [a, b] of mayMeet(substages, deps, memory)) {
      if (Object.hasOwn(pair, a) && Object.hasOwn(pair[a]!, b)) continue;
      refuse(["pair", a, b], `expected the slowdowns of '${a}' beside '${b}', which may meet on a worker`);
    }
  });
export type MultiplexProblem = z.infer<typeof MultiplexProblem>;
