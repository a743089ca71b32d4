/**
 * For programs that start runs themselves: what happens arrives as events.
 * @module treadle/runner
 */
export type { RunEvent, RunSummary } from "@treadle/contracts";
export * from "@treadle/runtime/runner";
