/**
 * Tokenizers of users, which a configuration names: a module of the project that exports `createTokenizer`.
 *
 * UT1 what the module returns is checked before it is used, and whatever it answers before anybody else sees it: no token that the model
 *     does not have, and no text that is none, gets into a prompt, a reward or an episode. It is given copies, so it writes into none.
 */
import { ProjectModule, TreadleError, thrownText } from "@treadle/contracts";
import type { ChatOptions, Tokenizer } from "@treadle/learning";
import { z } from "zod";

/** A timer takes no more. */
const maxTimeoutMs = 2_147_483_647;

export const ModuleTokenizerConfig = z.strictObject({
  kind: z.literal("module"),
  /** the file that exports `createTokenizer`, in JavaScript or TypeScript, from the project's root; on a node, below that */
  module: z.string().min(1),
  /** what its `createTokenizer` gets as `settings`; it checks them itself */
  settings: z.record(z.string(), z.json()).default({}),
  /** that `createTokenizer` may take, loaded and called */
  timeoutMs: z.number().positive().max(maxTimeoutMs).default(300_000),
});
export type ModuleTokenizerConfig = z.infer<typeof ModuleTokenizerConfig>;

/** What a module's `createTokenizer` is told. */
export type TokenizerContext = {
  readonly settings: ModuleTokenizerConfig["settings"];
  /** tokens that the model has: its own are below */
  readonly vocabSize: number;
};

/**
 * What a module exports. The runner and every rank of a rollout make one each, so it has to be the same in all of them. Texts and tokens are
 * answered at once; `encode` may answer with any list of integers.
 */
export type CreateTokenizer = (context: TokenizerContext) => Promise<OwnTokenizer> | OwnTokenizer;

/** A tokenizer whose tokens may be in any list. */
export type OwnTokenizer = Omit<Tokenizer, "encode"> & {
  encode(text: string, options?: { readonly special?: boolean }): ArrayLike<number>;
};

const Token = z.int().nonnegative();
const Own = z.object({ vocabularySize: z.int().positive(), paddingToken: Token, stopToken: Token });

/** Throws `worker.load-failed` where the module cannot be loaded, `config.invalid` where what it exports or returns is no tokenizer (UT1). */
export async function createModuleTokenizer(
  { module, settings, timeoutMs }: ModuleTokenizerConfig,
  context: Omit<TokenizerContext, "settings">,
  load: (module: string) => Promise<Readonly<Record<string, unknown>>>,
): Promise<Tokenizer> {
  const own = new ProjectModule({ key: "tokenizer.module", module, load });
  const within = { key: "tokenizer.timeoutMs", timeoutMs };
  const made = await own.create({ creator: "createTokenizer", what: "tokenizer", within }, { ...context, settings });
  const see = "; see Tokenizer of treadle/learning";
  own.check(made, ["encode", "decode", "transcribe"], { what: "tokenizer", see });
  const { vocabularySize, paddingToken, stopToken, chat } = made as Partial<OwnTokenizer>;
  const numbers = Own.safeParse(made).success ? (made as z.infer<typeof Own>) : undefined;
  if (!numbers || Math.max(numbers.paddingToken, numbers.stopToken) >= numbers.vocabularySize)
    throw own.refuse(
      `whose tokenizer has the vocabularySize '${vocabularySize}', the paddingToken '${paddingToken}' and the stopToken '${stopToken}'; give it integers, the two tokens at least 0 and below vocabularySize`,
    );
  if (chat !== undefined && typeof chat !== "function")
    throw own.refuse(`whose tokenizer has '${typeof chat}' as 'chat'; make it a function, or leave it out`);
  return new CheckedTokenizer(module, made as OwnTokenizer);
}

class CheckedTokenizer implements Tokenizer {
  readonly paddingToken: number;
  readonly stopToken: number;
  readonly vocabularySize: number;
  readonly chat?: NonNullable<Tokenizer["chat"]>;
  readonly #module: string;
  readonly #own: OwnTokenizer;

  constructor(module: string, own: OwnTokenizer) {
    this.#module = module;
    this.#own = own;
    this.paddingToken = own.paddingToken;
    this.stopToken = own.stopToken;
    this.vocabularySize = own.vocabularySize;
    if (own.chat)
      this.chat = (messages, options?: ChatOptions) =>
        this.#text("chat", own.chat?.(structuredClone(messages), structuredClone(options))); // UT1
  }

  encode(text: string, options?: { readonly special?: boolean }): Int32Array<ArrayBuffer> {
    const tokens: unknown = this.#own.encode(text, options);
    const given = isList(tokens) ? Array.from(tokens) : undefined;
    if (!given) throw this.#refuse("encode", described(tokens), "a list of integers, and no promise of one");
    const wrong = given.findIndex((token) => !(Number.isInteger(token) && token >= 0 && token < this.vocabularySize));
    if (wrong < 0) return Int32Array.from(given);
    const most = this.vocabularySize - 1;
    throw this.#refuse("encode", `'${thrownText(given[wrong])}' at '${wrong}'`, `integers from 0 to ${most}`);
  }

  decode(tokens: ArrayLike<number>): string {
    return this.#text("decode", this.#own.decode(Int32Array.from(tokens)));
  }

  transcribe(tokens: ArrayLike<number>): string {
    return this.#text("transcribe", this.#own.transcribe(Int32Array.from(tokens)));
  }

  #text(method: string, text: unknown): string {
    if (typeof text === "string") return text;
    throw this.#refuse(method, described(text), "a text, and no promise of one");
  }

  #refuse(method: string, given: string, allowed: string): TreadleError {
    return new TreadleError(
      "engine.invalid-request",
      `'${method}' of the tokenizer of '${this.#module}' answered ${given}: allowed is ${allowed}; mend the module`,
    );
  }
}

const isList = (tokens: unknown): tokens is ArrayLike<number> =>
  Array.isArray(tokens) || (ArrayBuffer.isView(tokens) && !(tokens instanceof DataView));

const described = (value: unknown): string =>
  value instanceof Promise ? "a promise" : `'${value === null ? "null" : typeof value}'`;
