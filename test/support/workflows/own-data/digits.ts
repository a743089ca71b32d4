/** A tokenizer of the project's own: the settings' characters from token 2 on. */
import type { TokenizerContext } from "@treadle/workers";

export function createTokenizer({ settings }: TokenizerContext) {
  const characters = [...(settings["characters"] as string)];
  const tokenOf = (character: string) => {
    if (!characters.includes(character)) throw new Error(`'${character}' is none of settings.characters; add it`);
    return characters.indexOf(character) + 2;
  };
  const textOf = (tokens: ArrayLike<number>) => Array.from(tokens, (token) => characters[token - 2] ?? "").join("");
  return {
    paddingToken: 0,
    stopToken: 1,
    vocabularySize: characters.length + 2,
    encode: (text: string) => Array.from(text, tokenOf),
    decode: (tokens: ArrayLike<number>) => {
      const all = Array.from(tokens);
      return textOf(all.includes(1) ? all.slice(0, all.indexOf(1)) : all);
    },
    transcribe: textOf,
  };
}
