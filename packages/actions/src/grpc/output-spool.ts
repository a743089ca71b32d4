/**
 * Output on its way to a client that reads slower than it is made: events go straight to the call while it takes them, and
 * to a file while it does not, so that neither the action waits for its reader nor the server's memory grows.
 *
 * OS1 events arrive in the order in which they were given, each once, whether they were spilled or not.
 * OS2 what a tenant's clients have not read never exceeds its budget: beyond it, or where the disk is full, `give` says no, and
 *    takes nothing.
 * OS3 after `end` and its last event, or `discard`, there is no file, and the budget has its bytes back.
 */

import { SpoolFile } from "./spool-file.ts";

/** What is written to; `drain` comes when it takes more. */
export type EventSink = {
  write(event: object): boolean;
  end(): void;
  on(event: "drain", listener: () => void): unknown;
};

/** Bytes that are kept in files for one tenant. */
export class DiskBudget {
  readonly limitBytes: number;
  #used = 0;

  constructor(limitBytes: number) {
    this.limitBytes = limitBytes;
  }

  get usedBytes(): number {
    return this.#used;
  }

  take(bytes: number): boolean {
    if (this.#used + bytes > this.limitBytes) return false;
    this.#used += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#used -= bytes;
  }
}

export type Stream = "stdout" | "stderr";
/** of output: a piece of the file. Others are few and small */
type Spilled = { readonly stream: Stream; bytes: number } | { readonly event: object };

/** Pieces are kept as one up to so much, as reading each back by itself would take long where they are small. */
const pieceBytes = 64 * 2 ** 10;

export class OutputSpool {
  readonly #sink: EventSink;
  readonly #budget: DiskBudget;
  readonly #waiting: Spilled[] = [];
  /** of the waiting ones, how many have gone */
  #gone = 0;
  #file: SpoolFile | undefined;
  #readTo = 0;
  #isFull = false;
  #isEnding = false;
  #isOver = false;

  constructor(sink: EventSink, budget: DiskBudget) {
    this.#sink = sink;
    this.#budget = budget;
    sink.on("drain", () => {
      this.#isFull = false;
      this.#readBack();
    });
  }

  /** False when the budget is used up, or the disk is full (OS2). */
  give(stream: Stream, chunk: Buffer): boolean {
    if (this.#isOver) return true;
    if (!this.#isFull && this.#waiting.length === 0) {
      this.#write({ output: { [stream]: chunk } });
      return true;
    }
    if (!this.#budget.take(chunk.length)) return false;
    this.#file ??= SpoolFile.open();
    if (!this.#file?.append(chunk)) {
      this.#budget.give(chunk.length);
      return false;
    }
    const last = this.#waiting.at(-1);
    if (last !== undefined && "bytes" in last && last.stream === stream && last.bytes + chunk.length <= pieceBytes)
      last.bytes += chunk.length;
    else this.#waiting.push({ stream, bytes: chunk.length });
    return true;
  }

  /** For what is small: when something starts, how it ended. */
  tell(event: object): void {
    if (this.#isOver) return;
    if (!this.#isFull && this.#waiting.length === 0) this.#write(event);
    else this.#waiting.push({ event });
  }

  /** Ends the call after its last event. */
  end(): void {
    this.#isEnding = true;
    this.#readBack();
  }

  /** The client is gone. */
  discard(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const one of this.#waiting.slice(this.#gone)) if ("bytes" in one) this.#budget.give(one.bytes);
    this.#waiting.length = this.#gone = 0;
    this.#file?.close();
    this.#file = undefined;
  }

  #readBack(): void {
    while (!this.#isOver && !this.#isFull) {
      const next = this.#waiting[this.#gone];
      if (next === undefined) break;
      // One by one from the front, they would all be moved each time.
      if (2 * ++this.#gone >= this.#waiting.length) {
        this.#waiting.splice(0, this.#gone);
        this.#gone = 0;
      }
      if ("event" in next) {
        this.#write(next.event);
        continue;
      }
      const file = this.#file!;
      const chunk = file.read(this.#readTo, next.bytes);
      this.#readTo += next.bytes;
      // All of it was read: its room is used again.
      if (this.#readTo === file.bytes) this.#readTo = file.bytes = 0;
      this.#budget.give(next.bytes);
      this.#write({ output: { [next.stream]: chunk } });
    }
    if (!this.#isEnding || this.#isOver || this.#waiting.length > 0) return;
    this.discard();
    this.#sink.end();
  }

  #write(event: object): void {
    this.#isFull = !this.#sink.write(event);
  }
}
