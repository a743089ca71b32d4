/**
 * The tokenizer and chat template of a Hugging Face model's folder, in JavaScript: the same tokens and text as Python's
 * `transformers` makes of them, which tests compare.
 */
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import type { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { type Message, TreadleError } from "@treadle/contracts";
import { checkModelFolder } from "@treadle/contracts/program-rights";
import type { ChatOptions, Tokenizer } from "@treadle/learning";
import { z } from "zod";
import { parseTemplate } from "./chat-template.ts";

/** Takes long to load, and most processes open no folder. */
const huggingFace = (): typeof import("@huggingface/tokenizers") =>
  createRequire(import.meta.url)("@huggingface/tokenizers");

export const TokenizerFolder = z.strictObject({
  /** `folder`, the default: of a Hugging Face model; `module`: of the project's own */
  kind: z.literal("folder").optional(),
  /** of a Hugging Face model, with `tokenizer.json`; from the project's root, the same on every node */
  folder: z.string().min(1),
  /** token that ends an answer; default: `eos_token` of `tokenizer_config.json` */
  stop: z.string().min(1).optional(),
  /** default: `pad_token` of `tokenizer_config.json`, or the one that ends an answer */
  padding: z.string().min(1).optional(),
});
export type TokenizerFolder = z.infer<typeof TokenizerFolder>;

/** A special token is its text, or an object around it. */
const Special = z.union([z.string(), z.object({ content: z.string() }).transform(({ content }) => content)]).nullish();
const NamedTemplates = z.array(z.object({ name: z.string(), template: z.string() }));
const SpecialTokens = z.looseObject({
  bos_token: Special,
  eos_token: Special,
  pad_token: Special,
  unk_token: Special,
  clean_up_tokenization_spaces: z.boolean().nullish(),
  chat_template: z.union([z.string(), NamedTemplates]).nullish(),
});
type SpecialTokens = z.infer<typeof SpecialTokens>;
type Template = ReturnType<typeof parseTemplate>;

/** Reads the folder. Throws `config.invalid`, which names what it lacks. */
export function openTokenizerFolder({ folder: given, stop, padding }: TokenizerFolder, root = "."): Tokenizer {
  const folder = resolve(root, given);
  checkModelFolder(folder, "tokenizer.folder"); // PGR1
  const path = join(folder, "tokenizer.json");
  if (!existsSync(path)) {
    throw refused(
      folder,
      "has no 'tokenizer.json'; name the folder of a Hugging Face model, or write one with its tokenizer's save_pretrained",
    );
  }
  const config = readJson(folder, "tokenizer_config.json") ?? {};
  const special = SpecialTokens.parse(config);
  let tokenizer: HuggingFaceTokenizer;
  try {
    const { Tokenizer } = huggingFace();
    tokenizer = new Tokenizer(readJson(folder, "tokenizer.json") as object, config);
  } catch (error) {
    if (error instanceof TreadleError) throw error;
    throw refused(folder, `has a 'tokenizer.json' that cannot be used (${(error as Error).message}); write it again`);
  }
  return new FolderTokenizer(folder, tokenizer, special, { stop, padding });
}

class FolderTokenizer implements Tokenizer {
  readonly paddingToken: number;
  readonly stopToken: number;
  readonly vocabularySize: number;
  readonly chat?: NonNullable<Tokenizer["chat"]>;
  readonly #tokenizer: HuggingFaceTokenizer;
  /** 1 where a token has a text; vocabularies may have gaps, and models more tokens than their tokenizer */
  readonly #known: Uint8Array;
  readonly #cleansSpaces: boolean;

  constructor(
    folder: string,
    tokenizer: HuggingFaceTokenizer,
    special: SpecialTokens,
    { stop, padding }: Pick<TokenizerFolder, "stop" | "padding">,
  ) {
    this.#tokenizer = tokenizer;
    const tokens = [...tokenizer.get_vocab(true).values()];
    this.vocabularySize = tokens.reduce((most, token) => Math.max(most, token + 1), 0);
    this.#known = new Uint8Array(this.vocabularySize);
    for (const token of tokens) this.#known[token] = 1;
    this.#cleansSpaces = special.clean_up_tokenization_spaces ?? false;
    const idOf = (text: string, key: string): number => {
      const token = tokenizer.token_to_id(text);
      if (token !== undefined) return token;
      throw refused(folder, `has no token '${text}'; name one of its tokens by tokenizer.${key}`);
    };
    const ending = stop ?? special.eos_token;
    if (!ending) throw refused(folder, "names no 'eos_token' in 'tokenizer_config.json'; name one by tokenizer.stop");
    this.stopToken = idOf(ending, "stop");
    const filling = padding ?? special.pad_token;
    this.paddingToken = filling ? idOf(filling, "padding") : this.stopToken;
    const template = templateOf(folder, special);
    if (template) this.chat = (messages, options) => render(folder, template, special, messages, options);
  }

  encode(text: string, { special = false }: { readonly special?: boolean } = {}): Int32Array<ArrayBuffer> {
    return Int32Array.from(this.#tokenizer.encode(text, { add_special_tokens: special }).ids);
  }

  decode(tokens: ArrayLike<number>): string {
    const end = Array.prototype.indexOf.call(tokens, this.stopToken);
    return this.#text(Array.prototype.slice.call(tokens, 0, end < 0 ? tokens.length : end), true);
  }

  transcribe(tokens: ArrayLike<number>): string {
    const read = Array.from(tokens).filter((token) => token === this.stopToken || token !== this.paddingToken);
    return this.#text(read, false);
  }

  /** A token without text, which a model may have beyond its tokenizer's, adds none, as in Python. */
  #text(tokens: readonly number[], isPlain: boolean): string {
    const known = tokens.filter((token) => this.#known[token] === 1);
    const options = { skip_special_tokens: isPlain, clean_up_tokenization_spaces: this.#cleansSpaces };
    return known.length === 0 ? "" : this.#tokenizer.decode(known, options);
  }
}

/** The newest way to keep it first, as `transformers` looks for it. */
function templateOf(folder: string, { chat_template }: SpecialTokens): Template | undefined {
  const path = join(folder, "chat_template.jinja");
  const kept = Array.isArray(chat_template)
    ? chat_template.find(({ name }) => name === "default")?.template
    : (chat_template ?? undefined);
  const text = existsSync(path) ? readFileSync(path, "utf8") : kept;
  if (text === undefined) return undefined;
  try {
    return parseTemplate(text);
  } catch (error) {
    throw refused(folder, `has a chat template that cannot be parsed (${(error as Error).message}); mend it`);
  }
}

function render(
  folder: string,
  template: Template,
  { bos_token, eos_token, pad_token, unk_token }: SpecialTokens,
  messages: readonly Message[],
  { tools, variables }: ChatOptions = {},
): string {
  const specials = Object.entries({ bos_token, eos_token, pad_token, unk_token }).filter(([, text]) => text);
  const given = { messages, tools: tools ?? null, documents: null, add_generation_prompt: true };
  try {
    return template.render({ ...Object.fromEntries(specials), ...given, ...variables });
  } catch (error) {
    throw refused(folder, `has a chat template that refuses these messages: ${(error as Error).message}`);
  }
}

function readJson(folder: string, name: string): unknown {
  const path = join(folder, name);
  if (!existsSync(path)) return undefined;
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    throw refused(folder, `has a '${name}' that is not JSON (${(error as Error).message}); write it again`);
  }
}

const refused = (folder: string, why: string): TreadleError =>
  new TreadleError("config.invalid", `tokenizer.folder is '${folder}', which ${why}`);
