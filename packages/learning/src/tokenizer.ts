import type { Message } from "@treadle/contracts";

/** Text to tokens and back. */
export interface Tokenizer {
  /** fills rows up; whatever it is, nobody reads it */
  readonly paddingToken: number;
  /** ends what a policy writes */
  readonly stopToken: number;
  /** one more than the largest token */
  readonly vocabularySize: number;
  /**
   * Throws `engine.invalid-request` for text that has no tokens. With `special` the tokens are added that begin and end a text
   * of its own, where the tokenizer has such; texts of `chat` have theirs.
   */
  encode(text: string, options?: { readonly special?: boolean }): Int32Array<ArrayBuffer>;
  /** The text up to the first stop token, without special tokens: what rewards judge. */
  decode(tokens: ArrayLike<number>): string;
  /** All of the text as people read it: with special tokens that have one, and beyond stop tokens. */
  transcribe(tokens: ArrayLike<number>): string;
  /** The text of a chat, up to where the policy goes on; absent where the tokenizer has no template. */
  chat?(messages: readonly Message[], options?: ChatOptions): string;
}

/** What a template may be told besides the messages. */
export type ChatOptions = {
  readonly tools?: readonly unknown[] | undefined;
  /** variables of the template's own, such as `enable_thinking` */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
};
