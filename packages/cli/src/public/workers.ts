/** The shipped workers. */
export * from "@treadle/workers";
