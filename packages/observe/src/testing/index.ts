export { syntheticTrace, traceStartMs } from "./synthetic-trace.ts";
