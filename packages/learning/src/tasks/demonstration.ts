import type { Prompt } from "@treadle/contracts";
import type { Tokenizer } from "../tokenizer.ts";

/** Prompt, answer and stop token, learned from the answer on: for a supervised warm-up. */
export function demonstrationOf(prompt: Prompt, tokenizer: Tokenizer): { tokens: Int32Array; mask: Float32Array } {
  const tokens = Int32Array.of(...prompt.tokens, ...tokenizer.encode(prompt.answer ?? ""), tokenizer.stopToken);
  return { tokens, mask: Float32Array.from(tokens, (_, token) => (token < prompt.tokens.length ? 0 : 1)) };
}
