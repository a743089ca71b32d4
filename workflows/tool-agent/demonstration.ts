import type { Prompt } from "treadle";
import type { CharacterTokenizer } from "treadle/learning";
import type { CallSyntax, Demonstration } from "treadle/workers";

/** `12*34=` and then `<12*34>408|408`, of which everything but the tool's `408|` is to be learned. */
export function demonstrateCall(prompt: Prompt, call: CallSyntax, tokenizer: CharacterTokenizer): Demonstration {
  const asked = tokenizer.encode(`${call.open}${tokenizer.decode(prompt.tokens).slice(0, -1)}${call.close}`);
  const answered = tokenizer.encode(`${prompt.answer}${call.end}`);
  const said = [...tokenizer.encode(prompt.answer ?? ""), tokenizer.stopToken];
  const parts = [prompt.tokens, asked, answered, said];
  const mask = parts.flatMap((part, index) => Array<number>(part.length).fill(index === 1 || index === 3 ? 1 : 0));
  return { tokens: Int32Array.from(parts.flatMap((part) => [...part])), mask: Float32Array.from(mask) };
}
