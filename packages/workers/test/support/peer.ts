import type { Messenger } from "@treadle/runtime";
import type { RankMessage } from "../../src/rollout/rank-messages.ts";
import { turns } from "./hand-engine.ts";

/** Another rank, whose words the test says, and which dies when it says so. */
export class Peer {
  readonly heard: RankMessage[] = [];
  #nonce = "first";
  #sequence = 0;
  readonly #queue: unknown[] = [];
  #waiting: { readonly resolve: (value: unknown) => void; readonly reject: (error: Error) => void } | undefined;

  /** of the one rank beside it */
  readonly messages = {
    callTag: (name: string) => name,
    send: async (_: string, value: unknown) => {
      this.heard.push(...(value as { readonly messages: readonly RankMessage[] }).messages);
    },
    recv: (_: string, __?: string, { signal }: { signal?: AbortSignal } = {}) => {
      if (this.#queue.length > 0) return Promise.resolve(this.#queue.shift());
      return new Promise<unknown>((resolve, reject) => {
        this.#waiting = { resolve, reject };
        signal?.addEventListener("abort", () => reject(new Error("the call is over")));
      });
    },
  } as unknown as Messenger;

  said<T extends RankMessage["type"]>(type: T): Extract<RankMessage, { type: T }>[] {
    return this.heard.filter((one): one is Extract<RankMessage, { type: T }> => one.type === type);
  }

  /** Resolves when this rank has been told of it, and has answered. */
  async say(...messages: readonly RankMessage[]): Promise<void> {
    const value = { nonce: this.#nonce, sequence: this.#sequence++, messages };
    const waiting = this.#waiting;
    this.#waiting = undefined;
    if (waiting) waiting.resolve(value);
    else this.#queue.push(value);
    await turns();
  }

  /** Whoever speaks next is another process. */
  async die(): Promise<void> {
    this.#nonce = "second";
    this.#waiting?.reject(new Error("rank 1 died"));
    this.#waiting = undefined;
    await turns();
  }
}
