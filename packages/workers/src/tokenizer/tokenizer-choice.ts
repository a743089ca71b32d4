import { TreadleError } from "@treadle/contracts";
import { createCharacterTokenizer, type Tokenizer } from "@treadle/learning";
import { z } from "zod";
import { openTokenizerFolder, TokenizerFolder } from "./tokenizer-folder.ts";

/** Where tokens come from: one a character, or those of a model's folder. */
export const TokenizerChoice = z.strictObject({
  /** the characters of the tokenizer, after padding and stop */
  alphabet: z.string().min(1).optional(),
  /** instead of `alphabet`: that of a Hugging Face model */
  tokenizer: TokenizerFolder.optional(),
});
export type TokenizerChoice = z.infer<typeof TokenizerChoice>;

/**
 * Throws `config.invalid` for both or none, for a folder that lacks something, and for a model of fewer tokens. The folder is
 * below `root`, by default the process's own, which is the project's root in a worker.
 */
export function openTokenizer(
  { alphabet, tokenizer }: TokenizerChoice,
  model: { readonly vocabSize: number },
  root = ".",
): Tokenizer {
  if ((alphabet === undefined) === (tokenizer === undefined)) {
    const given =
      alphabet === undefined ? "neither 'alphabet' nor 'tokenizer' is" : "'alphabet' and 'tokenizer' are both";
    throw new TreadleError("config.invalid", `${given} given: allowed is one of them, characters or a model's folder`);
  }
  const opened = tokenizer ? openTokenizerFolder(tokenizer, root) : createCharacterTokenizer(alphabet as string);
  if (opened.vocabularySize <= model.vocabSize) return opened;
  const own = tokenizer
    ? `the tokenizer of '${tokenizer.folder}' needs '${opened.vocabularySize}'; name the model's own folder, or raise it to that`
    : `the alphabet '${alphabet}' needs '${opened.vocabularySize}': its characters, padding and stop; raise it to that`;
  throw new TreadleError("config.invalid", `'model.vocabSize' is '${model.vocabSize}', but ${own}`);
}
