/**
 * Algorithms, advantages, losses, rewards, tasks and tokenizers.
 * @module treadle/learning
 */
export * from "@treadle/learning";
