/** Engines that run a model in their process, and what an engine has to do. */
export * from "@treadle/engines";
