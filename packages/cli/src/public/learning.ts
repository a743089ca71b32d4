/** Algorithms, advantages, losses, rewards, tasks and tokenizers. */
export * from "@treadle/learning";
