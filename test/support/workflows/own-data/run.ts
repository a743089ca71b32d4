/** The shipped workflow, on problems and with a tokenizer of the project's own. */
export { default } from "../../../../workflows/reasoning-grpo/run.ts";
