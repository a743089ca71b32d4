import { TreadleError } from "@treadle/contracts";
import type { Tokenizer } from "../tokenizer.ts";

/** Token 0 pads and token 1 stops; the characters follow in their given order, one token each. */
export function createCharacterTokenizer(characters: string): Tokenizer {
  const alphabet = [...characters];
  const tokenOf = new Map(alphabet.map((character, index) => [character, index + 2]));
  /** Padding and stop have no text. */
  const transcribe = (tokens: ArrayLike<number>): string =>
    Array.from(tokens, (token, index) => {
      const character = token < 2 ? "" : alphabet[token - 2];
      if (character !== undefined) return character;
      throw new TreadleError(
        "engine.invalid-request",
        `token '${token}' at '${index}' is not in the vocabulary: allowed is 0 to ${alphabet.length + 1}`,
      );
    }).join("");
  return {
    paddingToken: 0,
    stopToken: 1,
    vocabularySize: alphabet.length + 2,
    encode: (text) =>
      Int32Array.from([...text], (character) => {
        const token = tokenOf.get(character);
        if (token === undefined) {
          throw new TreadleError(
            "engine.invalid-request",
            `character '${character}' of '${text}' has no token: allowed is one of '${characters}'`,
          );
        }
        return token;
      }),
    decode(tokens) {
      const end = Array.prototype.indexOf.call(tokens, 1);
      return transcribe(end < 0 ? tokens : Array.prototype.slice.call(tokens, 0, end));
    },
    transcribe,
  };
}
