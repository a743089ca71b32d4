import type { Problem } from "@treadle/contracts";
import { arrangeProblem } from "./arrange/problem.ts";

export type { Chunk } from "./arrange/buddy.ts";
export { type ArrangeAnswer, ArrangeProblem, arrangeMethods, solveArrange } from "./arrange/problem.ts";

/** What `treadle solve` offers from this package, by name. */
export const problems = { arrange: arrangeProblem } as const satisfies Record<string, Problem>;
