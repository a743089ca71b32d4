/**
 * What goes over a socket: frames of an 8-byte head (u32 body bytes, u8 kind, u8 flags, u16 zero; little-endian) and a
 * body. `FrameReader` cuts a stream of bytes into them.
 */

import { protocolError } from "../protocol-error.ts";

export const headBytes = 8;

export const frameKind = {
  /** handshake: JSON */
  hello: 1,
  /** encoded value */
  plain: 2,
  /** message head (see `message-head.ts`), encoded value, area of buffers */
  attached: 3,
  /** message head, encoded value; the area follows in `chunk` frames */
  streamed: 4,
  /** the next bytes of the area of the last `streamed` message */
  chunk: 5,
  /** message head, encoded value; the area lies in a shared segment */
  segment: 6,
  /** u32 numbers of segments whose receiver needs them no more */
  released: 7,
  /** u32 numbers of segments that their owner has removed */
  retired: 8,
  /** nothing follows: an orderly close */
  goodbye: 9,
} as const;

/** `together`: other links have the same segment, so whoever views it in place sees a copy of what it writes. */
export const frameFlag = { reset: 1, urgent: 2, together: 4 } as const;
const allFlags = frameFlag.reset | frameFlag.urgent | frameFlag.together;

/** Bytes of an area that travel between two looks at urgent messages. */
export const chunkBytes = 256 * 1024;

export function writeHead(target: Uint8Array, bodyBytes: number, kind: number, flags: number): void {
  target[0] = bodyBytes;
  target[1] = bodyBytes >>> 8;
  target[2] = bodyBytes >>> 16;
  target[3] = bodyBytes >>> 24;
  target[4] = kind;
  target[5] = flags;
  target[6] = 0;
  target[7] = 0;
}

export interface FrameHandler {
  /** A whole frame; its body is `bytes[start, end)` and is only valid during the call. */
  frame(kind: number, flags: number, bytes: Uint8Array, start: number, end: number): void;
  /** The head of a chunk frame. */
  chunkStart(bodyBytes: number): void;
  /** The next bytes of the current chunk; already in place when they came through `chunkTarget`. */
  chunkBytes(bytes: Uint8Array): void;
  /** Where the rest of the area belongs, so that it can be read straight into place. */
  chunkTarget(): Uint8Array | undefined;
}

const initialScratchBytes = 4096;
const noBytes = new Uint8Array(0);

/**
 * Cuts a byte stream into frames without copying those that arrive whole. A frame that arrives in pieces is gathered in
 * a buffer that grows with what really came, so an announced length alone costs nothing.
 */
export class FrameReader {
  handler: FrameHandler;
  /** Largest body allowed; bodies of chunks excepted, which are bounded by `chunkBytes`. */
  maxBodyBytes: number;
  #scratch: Uint8Array = noBytes;
  #gathered = 0;
  #chunkRemaining = 0;
  #stopped = false;
  readonly #head = Buffer.allocUnsafeSlow(headBytes);

  constructor(handler: FrameHandler, maxBodyBytes: number) {
    this.handler = handler;
    this.maxBodyBytes = maxBodyBytes;
  }

  /** Ignores all further bytes, also those of the push under way. */
  stop(): void {
    this.#stopped = true;
    this.#scratch = noBytes;
  }

  /** Where the next read should put its bytes; undefined when anywhere will do. */
  target(): Uint8Array | undefined {
    if (this.#stopped || this.#gathered > 0) return undefined;
    const area = this.handler.chunkTarget();
    if (area === undefined) return undefined;
    // No further than this chunk, and between two no further than a head, so that nothing of an area has to be moved.
    return this.#chunkRemaining === 0 ? this.#head : area.subarray(0, this.#chunkRemaining);
  }

  /** Throws what the handler throws, and `link.protocol` on an impossible head. */
  push(bytes: Uint8Array): void {
    let position = 0;
    while (position < bytes.length && !this.#stopped) {
      if (this.#chunkRemaining > 0) {
        const take = Math.min(this.#chunkRemaining, bytes.length - position);
        this.#chunkRemaining -= take;
        this.handler.chunkBytes(take === bytes.length ? bytes : bytes.subarray(position, position + take));
        position += take;
      } else if (this.#gathered > 0) {
        position = this.#gather(bytes, position);
      } else {
        const left = bytes.length - position;
        const bodyBytes = left >= headBytes ? this.#bodyBytes(bytes, position) : -1;
        if (bodyBytes === chunkHead) {
          position += headBytes;
        } else if (bodyBytes >= 0 && left >= headBytes + bodyBytes) {
          const start = position + headBytes;
          position = start + bodyBytes;
          this.handler.frame(bytes[start - 4]!, bytes[start - 3]!, bytes, start, position);
        } else {
          position = this.#gather(bytes, position);
        }
      }
    }
  }

  /** Adds to the gathered frame and dispatches it once whole; returns the position after what it took. */
  #gather(bytes: Uint8Array, from: number): number {
    let position = from;
    if (this.#gathered < headBytes) {
      position = this.#append(bytes, position, headBytes - this.#gathered);
      if (this.#gathered < headBytes) return position;
    }
    const bodyBytes = this.#bodyBytes(this.#scratch, 0);
    if (bodyBytes === chunkHead) {
      this.#gathered = 0;
      return position;
    }
    const end = headBytes + bodyBytes;
    position = this.#append(bytes, position, end - this.#gathered);
    if (this.#gathered < end) return position;
    const frame = this.#scratch;
    this.#gathered = 0;
    if (frame.length > 1024 * 1024) this.#scratch = noBytes;
    this.handler.frame(frame[4]!, frame[5]!, frame, headBytes, end);
    return position;
  }

  #append(bytes: Uint8Array, from: number, wanted: number): number {
    const take = Math.min(wanted, bytes.length - from);
    const needed = this.#gathered + take;
    if (needed > this.#scratch.length) {
      const grown = Buffer.allocUnsafeSlow(Math.max(initialScratchBytes, needed, this.#scratch.length * 2));
      grown.set(this.#scratch.subarray(0, this.#gathered));
      this.#scratch = grown;
    }
    this.#scratch.set(bytes.subarray(from, from + take), this.#gathered);
    this.#gathered = needed;
    return from + take;
  }

  /** Body size of the frame whose head is at `position`; `chunkHead` after entering a chunk. */
  #bodyBytes(bytes: Uint8Array, position: number): number {
    const size =
      bytes[position]! +
      bytes[position + 1]! * 2 ** 8 +
      bytes[position + 2]! * 2 ** 16 +
      bytes[position + 3]! * 2 ** 24;
    const kind = bytes[position + 4]!;
    if (kind < frameKind.hello || kind > frameKind.goodbye) throw protocolError(`frame kind ${kind} is unknown`);
    if (bytes[position + 5]! > allFlags || bytes[position + 6] !== 0 || bytes[position + 7] !== 0) {
      throw protocolError("a frame has unknown flags");
    }
    if (kind === frameKind.chunk) {
      if (size === 0 || size > chunkBytes)
        throw protocolError(`a chunk announces ${size} bytes, and ${chunkBytes} are allowed`);
      this.handler.chunkStart(size);
      this.#chunkRemaining = size;
      return chunkHead;
    }
    if (size > this.maxBodyBytes) {
      throw protocolError(`a frame announces ${size} bytes, and ${this.maxBodyBytes} are allowed`);
    }
    return size;
  }
}

const chunkHead = -2;
