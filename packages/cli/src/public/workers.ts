/**
 * The shipped workers.
 * @module treadle/workers
 */
export * from "@treadle/workers";
