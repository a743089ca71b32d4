import type { Prompt } from "treadle";
import { type CharacterTokenizer, firstDone } from "treadle/learning";
import type { CallSyntax, Demonstration } from "treadle/workers";

/**
 * A call an operation, from left to right: `3+5-2=` and then `<3+5-2>8-2|<8-2>6|6`, of which everything but the tool's `8-2|`
 * and `6|` is to be learned.
 */
export function demonstrateCalls(prompt: Prompt, call: CallSyntax, tokenizer: CharacterTokenizer): Demonstration {
  const tokens = [...prompt.tokens];
  const mask = tokens.map(() => 0);
  const append = (text: string, isLearned: 0 | 1) => {
    for (const token of tokenizer.encode(text)) {
      tokens.push(token);
      mask.push(isLearned);
    }
  };
  let left = tokenizer.decode(prompt.tokens).slice(0, -1);
  for (let rest = firstDone(left); rest !== undefined; rest = firstDone(left)) {
    append(`${call.open}${left}${call.close}`, 1);
    append(`${rest}${call.end}`, 0);
    left = rest;
  }
  append(left, 1);
  return { tokens: Int32Array.of(...tokens, tokenizer.stopToken), mask: Float32Array.of(...mask, 1) };
}
