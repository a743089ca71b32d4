/**
 * What decides and what keeps account, for whoever drives it on a clock of its own. Nothing here reaches a process, a
 * socket, a timer or `transport`.
 */
import type { Problem } from "@treadle/contracts";
import { arrangeProblem } from "./arrange/problem.ts";
import { actionsProblem } from "./decide/problem.ts";

export { type DecideOptions, decide, defaultDecideOptions } from "./decide/decide.ts";
export type { QueuedAction } from "./decide/queued-action.ts";
export type { Busy } from "./decide/resource-state.ts";
export { ActionHistory } from "./formulation/action-history.ts";
export { ActionSpec } from "./formulation/action-spec.ts";

export { formulate } from "./formulation/formulate.ts";
export { CpuManager } from "./managers/cpu.ts";
export { GpuManager } from "./managers/gpu.ts";
export type { Grant, ResourceManager, ResourceRequest } from "./managers/manager.ts";

/** What `treadle solve` offers from this package, by name. */
export const problems = { arrange: arrangeProblem, actions: actionsProblem } as const satisfies Record<string, Problem>;
