import { TreadleError } from "@treadle/contracts";

/** One token a character, after two special ones. */
export interface CharacterTokenizer {
  /** Padding is token 0 and stop is token 1; characters follow in their given order. */
  readonly paddingToken: 0;
  readonly stopToken: 1;
  readonly vocabularySize: number;
  /** Throws `engine.invalid-request` for a character outside the vocabulary. */
  encode(text: string): Int32Array<ArrayBuffer>;
  /** The text up to the first stop token; padding is skipped. Throws for a token outside the vocabulary. */
  decode(tokens: ArrayLike<number>): string;
}

export function createCharacterTokenizer(characters: string): CharacterTokenizer {
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
