/**
 * Engines that run a model in their process, and what an engine has to do.
 * @module treadle/engines
 */
export * from "@treadle/engines";
