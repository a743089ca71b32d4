/**
 * Engines that run a model in the worker's process, on PyTorch or on a server, and what an engine has to do.
 * @module treadle/engines
 */
export * from "@treadle/engines";
