import type { Prompt } from "treadle";
import { firstDone, type Tokenizer } from "treadle/learning";
import type { CallSyntax, Demonstration } from "treadle/workers";

/**
 * `12*34=` and then `<12*34>408|408`, of which everything but the tool's `408|` is to be learned. Chains are filled up, and have
 * a call for each operation: `3+5-2===` and then `<3+5-2===>8-2=====|<8-2=====>6=======|6`.
 */
export function demonstrateCalls(
  prompt: Prompt,
  call: CallSyntax,
  tokenizer: Tokenizer,
  isFilled = false,
): Demonstration {
  const tokens = [...prompt.tokens];
  const mask = tokens.map(() => 0);
  const append = (text: string, isLearned: 0 | 1) => {
    for (const token of tokenizer.encode(text)) {
      tokens.push(token);
      mask.push(isLearned);
    }
  };
  const asked = tokenizer.decode(prompt.tokens);
  let left = isFilled ? asked : asked.slice(0, -1);
  for (let rest = firstDone(left); rest !== undefined; rest = firstDone(left)) {
    append(`${call.open}${left}${call.close}`, 1);
    left = isFilled ? rest.padEnd(asked.length, "=") : rest;
    append(`${left}${call.end}`, 0);
  }
  append(prompt.answer ?? "", 1);
  return { tokens: Int32Array.of(...tokens, tokenizer.stopToken), mask: Float32Array.of(...mask, 1) };
}
