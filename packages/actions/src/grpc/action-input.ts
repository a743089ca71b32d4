/**
 * What a client sends to a command that runs, on its way there.
 *
 * AI1 every byte reaches the command's input once and in order, however often a call was lost and repeated.
 * AI2 what the command has not read never exceeds the limit: beyond it, `give` says no, and takes nothing.
 */
import { PassThrough, type Readable } from "node:stream";

/** `gap`: something before it has not arrived. `full`: the command reads slower than this comes. */
export type InputAnswer = "taken" | "gap" | "full" | "ended";

export class ActionInput {
  readonly #stream = new PassThrough();
  readonly #limitBytes: number;
  #receivedBytes = 0;

  constructor(limitBytes: number, beginning: Uint8Array) {
    this.#limitBytes = limitBytes;
    if (beginning.length > 0) this.#stream.write(beginning);
  }

  get stream(): Readable {
    return this.#stream;
  }

  get receivedBytes(): number {
    return this.#receivedBytes;
  }

  /** `offset`: bytes that were sent before it. */
  give(offset: number, data: Uint8Array, isLast: boolean): InputAnswer {
    if (offset > this.#receivedBytes) return "gap";
    const fresh = data.subarray(this.#receivedBytes - offset); // AI1
    if (this.#stream.writableEnded) return fresh.length > 0 ? "ended" : "taken";
    if (fresh.length > 0 && this.#waitingBytes + fresh.length > this.#limitBytes) return "full"; // AI2
    this.#receivedBytes += fresh.length;
    if (fresh.length > 0) this.#stream.write(fresh);
    if (isLast) this.#stream.end();
    return "taken";
  }

  get #waitingBytes(): number {
    return this.#stream.writableLength + this.#stream.readableLength;
  }
}
