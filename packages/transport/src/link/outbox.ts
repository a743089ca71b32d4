/**
 * The sending half of a socket link: what is queued, in which order it leaves, and how much of it there is.
 *
 * Owned here: frames not yet given to the socket, and at most one area that is streaming in chunks.
 *
 * OB1 frames leave in the order in which they were added, except that urgent ones pass a streaming area between chunks.
 * OB2 frames added in one turn of the event loop leave in one write.
 * OB3 at most `maxChunksInFlight` chunks are with the socket, so an urgent frame waits for no more than those.
 */

import type { Socket } from "node:net";
import { chunkBytes, frameKind, headBytes, writeHead } from "./frame.ts";

const maxChunksInFlight = 2;
/** `drained()` resolves below this. */
const lowMarkBytes = 1024 * 1024;
/** Frames up to this size are joined into one write. */
const joinBytes = 32 * 1024;
const maxJoinedBytes = 256 * 1024;

type Streaming = { readonly pieces: Iterator<Uint8Array>; rest: Uint8Array | undefined };
type Waiter = { readonly resolve: () => void; readonly reject: (error: Error) => void };

export class Outbox {
  readonly #socket: Socket;
  /** Ready to leave, in order. */
  #ready: Uint8Array[] = [];
  /** Behind the streaming area: a frame, or the next area. */
  #behind: (Uint8Array | Streaming)[] = [];
  #streaming: Streaming | undefined;
  #chunksInFlight = 0;
  #heldBytes = 0;
  #scheduled = false;
  #ending = false;
  #closed: Error | undefined;
  #waiters: Waiter[] = [];

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("drain", () => this.#flush());
  }

  get queuedBytes(): number {
    return this.#heldBytes + this.#socket.writableLength;
  }

  drained(): Promise<void> {
    if (this.#closed) return Promise.reject(this.#closed);
    if (this.queuedBytes <= lowMarkBytes) return Promise.resolve();
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  add(frame: Uint8Array, urgent: boolean): void {
    this.#heldBytes += frame.length;
    if (this.#streaming !== undefined && !urgent) this.#behind.push(frame);
    else this.#ready.push(frame);
    this.#schedule();
  }

  /** Adds an area that follows the frame added last; its pieces are read as they leave. */
  addArea(pieces: Iterator<Uint8Array>, areaBytes: number): void {
    this.#heldBytes += areaBytes;
    const streaming = { pieces, rest: undefined };
    if (this.#streaming !== undefined) this.#behind.push(streaming);
    else this.#streaming = streaming;
    this.#schedule();
  }

  /** Ends the socket after everything queued. */
  end(): void {
    this.#ending = true;
    this.#schedule();
  }

  /** Forgets everything; waiters reject with the error. */
  close(error: Error): void {
    if (this.#closed) return;
    this.#closed = error;
    this.#ready = [];
    this.#behind = [];
    this.#streaming = undefined;
    this.#heldBytes = 0;
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const waiter of waiters) waiter.reject(error);
  }

  #schedule(): void {
    if (this.#scheduled || this.#closed) return;
    this.#scheduled = true;
    process.nextTick(() => {
      this.#scheduled = false;
      this.#flush();
    });
  }

  #flush(): void {
    if (this.#closed) return;
    // While the socket is full, frames gather here and leave together (OB2); its `drain` comes back.
    if (!this.#socket.writableNeedDrain || this.#streaming !== undefined) this.#writeReady();
    this.#pump();
    if (this.#waiters.length > 0 && this.queuedBytes <= lowMarkBytes) {
      const waiters = this.#waiters;
      this.#waiters = [];
      for (const waiter of waiters) waiter.resolve();
    }
    if (this.#ending && this.#heldBytes === 0) {
      this.#ending = false;
      this.#socket.end();
    }
  }

  #writeReady(): void {
    const ready = this.#ready;
    if (ready.length === 0) return;
    this.#ready = [];
    if (ready.length === 1) {
      this.#write(ready[0]!);
      return;
    }
    this.#socket.cork();
    let first = 0;
    let joined = 0;
    for (let index = 0; index < ready.length; index++) {
      const { length } = ready[index]!;
      if (length > joinBytes || joined + length > maxJoinedBytes) {
        this.#writeJoined(ready, first, index, joined);
        first = index;
        joined = 0;
      }
      joined += length;
    }
    this.#writeJoined(ready, first, ready.length, joined);
    this.#socket.uncork();
  }

  #writeJoined(frames: readonly Uint8Array[], from: number, to: number, bytes: number): void {
    if (to - from === 1) this.#write(frames[from]!);
    else if (to > from) this.#write(Buffer.concat(frames.slice(from, to), bytes));
  }

  #write(bytes: Uint8Array): void {
    this.#heldBytes -= bytes.length;
    this.#socket.write(bytes);
  }

  #pump(): void {
    while (this.#streaming !== undefined && this.#chunksInFlight < maxChunksInFlight) {
      const chunk = nextChunk(this.#streaming);
      if (chunk === undefined) {
        this.#streaming = undefined;
        this.#advance();
        continue;
      }
      this.#chunksInFlight++;
      this.#socket.cork();
      for (const [index, piece] of chunk.entries()) {
        if (index > 0) this.#heldBytes -= piece.length;
        if (index < chunk.length - 1) this.#socket.write(piece);
        else
          this.#socket.write(piece, () => {
            this.#chunksInFlight--;
            this.#flush();
          });
      }
      this.#socket.uncork();
    }
  }

  /** Lets what waited behind the finished area go, up to the next area (OB1). */
  #advance(): void {
    const behind = this.#behind;
    let index = 0;
    for (; index < behind.length; index++) {
      const next = behind[index]!;
      if (next instanceof Uint8Array) this.#ready.push(next);
      else {
        this.#streaming = next;
        index++;
        break;
      }
    }
    this.#behind = index === behind.length ? [] : behind.slice(index);
    this.#writeReady();
  }
}

/** The head and the pieces of the next chunk of an area; undefined after the last. */
function nextChunk(streaming: Streaming): Uint8Array[] | undefined {
  const head = Buffer.allocUnsafe(headBytes);
  const chunk: Uint8Array[] = [head];
  let size = 0;
  while (size < chunkBytes) {
    if (streaming.rest === undefined) {
      const next = streaming.pieces.next();
      if (next.done) break;
      streaming.rest = next.value;
    }
    const piece = streaming.rest;
    const take = Math.min(piece.length, chunkBytes - size);
    chunk.push(take === piece.length ? piece : piece.subarray(0, take));
    streaming.rest = take === piece.length ? undefined : piece.subarray(take);
    size += take;
  }
  if (size === 0) return undefined;
  writeHead(head, size, frameKind.chunk, 0);
  return chunk;
}
