import { TreadleError } from "@treadle/contracts";
import { createCharacterTokenizer, type Tokenizer } from "@treadle/learning";
import { z } from "zod";
import { createModuleTokenizer, ModuleTokenizerConfig } from "./module-tokenizer.ts";
import { openTokenizerFolder, TokenizerFolder } from "./tokenizer-folder.ts";

/** Where tokens come from: one a character, those of a model's folder, or those of a module of the project. */
export const TokenizerChoice = z.strictObject({
  /** the characters of the tokenizer, after padding and stop */
  alphabet: z.string().min(1).optional(),
  /** instead of `alphabet`: that of a Hugging Face model, or of a module of the project */
  tokenizer: z.discriminatedUnion("kind", [TokenizerFolder, ModuleTokenizerConfig]).optional(),
});
export type TokenizerChoice = z.infer<typeof TokenizerChoice>;

type Model = { readonly vocabSize: number };

/**
 * Throws `config.invalid` for both or none, for a folder that lacks something, for a model of fewer tokens, and for a module, which
 * `createTokenizer` loads. The folder is below `root`, by default the process's own, which is the project's root in a worker.
 */
export function openTokenizer(choice: TokenizerChoice, model: Model, root = "."): Tokenizer {
  const { alphabet, tokenizer } = choice;
  checkOne(choice);
  if (tokenizer?.kind === "module")
    throw new TreadleError(
      "config.invalid",
      `tokenizer.module is '${tokenizer.module}', which has to be loaded first: await createTokenizer in place of openTokenizer`,
    );
  const opened = tokenizer ? openTokenizerFolder(tokenizer, root) : createCharacterTokenizer(alphabet as string);
  return fitting(opened, choice, model);
}

/** The same, of modules of the project, too: `loadModule` is the workflow's or the worker's. */
export async function createTokenizer(
  choice: TokenizerChoice,
  model: Model,
  {
    projectRoot,
    loadModule,
  }: {
    readonly projectRoot?: string;
    readonly loadModule: (module: string) => Promise<Readonly<Record<string, unknown>>>;
  },
): Promise<Tokenizer> {
  const { tokenizer } = choice;
  if (tokenizer?.kind !== "module") return openTokenizer(choice, model, projectRoot);
  checkOne(choice);
  const { vocabSize } = model;
  return fitting(await createModuleTokenizer(tokenizer, { vocabSize }, loadModule), choice, model);
}

/** As errors call it. */
export function tokenizerName({ alphabet, tokenizer }: TokenizerChoice): string {
  if (tokenizer) return `the tokenizer of '${tokenizer.kind === "module" ? tokenizer.module : tokenizer.folder}'`;
  return `the alphabet '${alphabet}'`;
}

function checkOne({ alphabet, tokenizer }: TokenizerChoice): void {
  if ((alphabet === undefined) !== (tokenizer === undefined)) return;
  const given =
    alphabet === undefined ? "neither 'alphabet' nor 'tokenizer' is" : "'alphabet' and 'tokenizer' are both";
  throw new TreadleError(
    "config.invalid",
    `${given} given: allowed is one of them, characters, or a model's folder or a module`,
  );
}

function fitting(opened: Tokenizer, choice: TokenizerChoice, model: Model): Tokenizer {
  if (opened.vocabularySize <= model.vocabSize) return opened;
  const needs = `${tokenizerName(choice)} needs '${opened.vocabularySize}'`;
  const kind = choice.tokenizer ? (choice.tokenizer.kind ?? "folder") : undefined;
  const remedy =
    kind === "folder"
      ? "; name the model's own folder, or raise it to that"
      : kind === "module"
        ? "; raise it to that"
        : ": its characters, padding and stop; raise it to that";
  throw new TreadleError("config.invalid", `'model.vocabSize' is '${model.vocabSize}', but ${needs}${remedy}`);
}
