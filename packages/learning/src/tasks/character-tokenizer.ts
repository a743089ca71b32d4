import { TreadleError } from "@treadle/contracts";
import type { Tokenizer } from "../tokenizer.ts";

/** Token 0 pads and token 1 stops; the characters follow in their given order, one token each. */
export function createCharacterTokenizer(characters: string): Tokenizer {
  const alphabet = [...characters];
  const tokenOf = new Map(alphabet.map((character, index) => [character, index + 2]));
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
      let text = "";
      for (let index = 0; index < tokens.length; index++) {
        const token = tokens[index]!;
        if (token === 1) break;
        if (token === 0) continue;
        const character = alphabet[token - 2];
        if (character === undefined) {
          throw new TreadleError(
            "engine.invalid-request",
            `token '${token}' at '${index}' is not in the vocabulary: allowed is 0 to ${alphabet.length + 1}`,
          );
        }
        text += character;
      }
      return text;
    },
  };
}
