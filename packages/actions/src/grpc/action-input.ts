/**
 * What a client sends to a command that runs, on its way there.
 *
 * AI1 every byte reaches the command's input once and in order, however often a call was lost and repeated.
 * AI2 what the command has not read never exceeds the limit: beyond it, `give` says no, and takes nothing.
 */
import { PassThrough, type Readable } from "node:stream";
import * as grpc from "@grpc/grpc-js";
import { maxInputBytes } from "./messages.ts";
import { StatusError } from "./status.ts";

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

/** Throws where it is not taken. */
export function sendInput(
  action: string,
  input: ActionInput | undefined,
  offset: number,
  data: Uint8Array,
  end: boolean,
): void {
  if (input === undefined)
    throw new StatusError(
      grpc.status.FAILED_PRECONDITION,
      `action '${action}' was submitted with all of its input; submit it with input: true`,
    );
  const answer = input.give(offset, data, end);
  if (answer === "taken") return;
  const [status, why] = {
    gap: [
      grpc.status.OUT_OF_RANGE,
      `offset: '${offset}' is beyond the ${input.receivedBytes} bytes that have arrived; send those between first`,
    ],
    full: [
      grpc.status.RESOURCE_EXHAUSTED,
      `action '${action}' has not read what was sent before, of which ${maxInputBytes} bytes are kept; send this again when it has`,
    ],
    ended: [grpc.status.FAILED_PRECONDITION, `the input of action '${action}' was ended; nothing may come after it`],
  }[answer] as [grpc.status, string];
  throw new StatusError(status, why);
}
