/**
 * A link over a connected, authenticated socket.
 *
 * Owned here: the socket, one codec pair a lane (ordered, urgent), the outbox, and the area being received. The endpoint
 * hands the socket over after the handshake; a segment exchange, when both ends share memory, carries large areas.
 *
 * SK1 messages of a lane are delivered in the order of sending, each once, synchronously while bytes are read.
 * SK2 whatever is malformed closes the link with `link.protocol`; nothing from the wire throws into the event loop.
 * SK3 `onClose` listeners run once, after the last message; their cause is absent only after a goodbye from either side.
 * SK4 a message reaches the listener whole or not at all.
 */

import type { Socket } from "node:net";
import { type Link, type PeerName, type SendOptions, TreadleError } from "@treadle/contracts";
import { Decoder, type Encoded, Encoder } from "../codec/codec.ts";
import {
  areaBytesOf,
  areaPieces,
  buffersOf,
  copyArea,
  type MessageHead,
  messageHeadBytes,
  readMessageHead,
  writeMessageHead,
} from "../codec/message-head.ts";
import { takeMemory } from "../codec/received-arrays.ts";
import type { SegmentExchange, SegmentReports } from "../memory/segment-exchange.ts";
import { protocolError } from "../protocol-error.ts";
import { type FrameHandler, type FrameReader, frameFlag, frameKind, headBytes, writeHead } from "./frame.ts";
import { Outbox } from "./outbox.ts";

/** Typed arrays up to this many bytes a message travel in its frame. */
export const attachBytes = 64 * 1024;

export type LinkLimits = {
  /** Largest frame, which holds a whole message except for its large typed arrays. Default 64 MiB. */
  readonly maxFrameBytes: number;
  /** Most bytes of typed arrays in one message. Default 4 GiB. */
  readonly maxAreaBytes: number;
};

export const defaultLinkLimits: LinkLimits = { maxFrameBytes: 64 * 1024 * 1024, maxAreaBytes: 4 * 1024 ** 3 };

export type SocketLinkOptions = {
  readonly remote: PeerName;
  readonly socket: Socket;
  /** Where the socket's bytes come from; the link becomes its handler. */
  readonly reader: FrameReader;
  readonly limits: LinkLimits;
  /** Made for this link when both ends share memory. */
  readonly segments?: ((reports: SegmentReports) => SegmentExchange) | undefined;
};

const closeDeadlineMs = 5000;

type Receiving = {
  readonly head: MessageHead;
  readonly area: Uint8Array;
  readonly value: Uint8Array;
  readonly reset: boolean;
  received: number;
};

export class SocketLink implements Link, FrameHandler {
  readonly remote: PeerName;
  readonly #socket: Socket;
  readonly #reader: FrameReader;
  readonly #limits: LinkLimits;
  readonly #outbox: Outbox;
  readonly #segments: SegmentExchange | undefined;
  readonly #ordered = { encoder: new Encoder(), decoder: new Decoder() };
  #urgent: { encoder: Encoder; decoder: Decoder } | undefined;
  #receiving: Receiving | undefined;
  #listener: ((message: unknown) => void) | undefined;
  #undelivered: unknown[] = [];
  #closeListeners: ((cause: Error | undefined) => void)[] = [];
  /** open → closing (goodbye sent, or received) → closed */
  #state: "open" | "closing" | "closed" = "open";
  #orderly = false;
  #socketError: Error | undefined;
  #cause: Error | undefined;
  readonly #released: number[] = [];
  readonly #retired: number[] = [];

  constructor(options: SocketLinkOptions) {
    const { socket, reader } = options;
    this.remote = options.remote;
    this.#socket = socket;
    this.#reader = reader;
    this.#limits = options.limits;
    this.#outbox = new Outbox(socket);
    this.#segments = options.segments?.({
      released: (segment) => this.#report(this.#released, frameKind.released, segment),
      retired: (segment) => this.#report(this.#retired, frameKind.retired, segment),
    });
    reader.handler = this;
    reader.maxBodyBytes = this.#limits.maxFrameBytes;
    socket.on("error", (error) => {
      this.#socketError ??= error;
      socket.destroy(); // one of TLS stays open otherwise when what it receives was changed on its way
    });
    socket.on("end", () => {
      this.#outbox.end();
      this.#cutOffLater();
    });
    socket.on("close", () => this.#finish());
  }

  get queuedBytes(): number {
    return this.#outbox.queuedBytes;
  }

  /** Bytes through the socket so far, the handshake's included. */
  get traffic(): { sentBytes: number; receivedBytes: number } {
    return { sentBytes: this.#socket.bytesWritten, receivedBytes: this.#socket.bytesRead };
  }

  drained(): Promise<void> {
    return this.#outbox.drained();
  }

  send(message: unknown, options?: SendOptions): void {
    if (this.#state !== "open") throw this.#closedError();
    const urgent = options?.urgent === true;
    const { encoder } = urgent ? this.#urgentLane() : this.#ordered;
    const encoded = encoder.encode(message, headBytes);
    const flags = (encoded.reset ? frameFlag.reset : 0) | (urgent ? frameFlag.urgent : 0);
    if (encoded.buffers.length === 0) {
      const { header } = encoded;
      const bodyBytes = header.length - headBytes;
      if (bodyBytes > this.#limits.maxFrameBytes) throw this.#tooLarge(encoder, encoded, bodyBytes, "maxFrameBytes");
      writeHead(header, bodyBytes, frameKind.plain, flags);
      this.#outbox.add(header, urgent);
    } else {
      this.#sendBuffers(encoder, encoded, flags, options);
    }
  }

  #sendBuffers(encoder: Encoder, encoded: Encoded, flags: number, options: SendOptions = {}): void {
    const { urgent = false, together } = options;
    const { buffers, header } = encoded;
    const valueBytes = header.length - headBytes;
    const areaBytes = areaBytesOf(buffers);
    const attached = areaBytes <= attachBytes;
    const startBytes = messageHeadBytes(buffers);
    const bodyBytes = startBytes + valueBytes + (attached ? areaBytes : 0);
    if (bodyBytes > this.#limits.maxFrameBytes) throw this.#tooLarge(encoder, encoded, bodyBytes, "maxFrameBytes");
    if (areaBytes > this.#limits.maxAreaBytes) throw this.#tooLarge(encoder, encoded, areaBytes, "maxAreaBytes");
    if (urgent && !attached) throw this.#tooLarge(encoder, encoded, areaBytes, "urgent");
    const segment = attached ? undefined : this.#segments?.lend(buffers, areaBytes, together);
    const kind = attached ? frameKind.attached : segment === undefined ? frameKind.streamed : frameKind.segment;
    const frame = Buffer.allocUnsafe(headBytes + bodyBytes);
    const isTogether = segment !== undefined && together !== undefined;
    writeHead(frame, bodyBytes, kind, flags | (isTogether ? frameFlag.together : 0));
    writeMessageHead(frame, headBytes, buffers, valueBytes, segment ?? 0);
    frame.set(header.subarray(headBytes), headBytes + startBytes);
    if (attached) copyArea(buffers, frame, headBytes + startBytes + valueBytes);
    this.#outbox.add(frame, urgent);
    if (!attached && segment === undefined) this.#outbox.addArea(areaPieces(buffers), areaBytes);
  }

  onMessage(listener: (message: unknown) => void): void {
    this.#listener = listener;
    if (this.#undelivered.length === 0) return;
    // Later, so that whoever listens can finish setting itself up.
    queueMicrotask(() => {
      for (let next = 0; next < this.#undelivered.length; next++) this.#hand(this.#undelivered[next]);
      this.#undelivered = [];
      this.#socket.resume();
    });
  }

  onClose(listener: (cause: Error | undefined) => void): void {
    if (this.#state === "closed") listener(this.#cause);
    else this.#closeListeners.push(listener);
  }

  close(cause?: Error): Promise<void> {
    if (cause !== undefined) this.#destroy(cause);
    else if (this.#state === "open") this.#sayGoodbye();
    return new Promise((resolve) => this.onClose(() => resolve()));
  }

  frame(kind: number, flags: number, bytes: Uint8Array, start: number, end: number) {
    if (this.#receiving !== undefined && (flags & frameFlag.urgent) === 0) {
      throw protocolError(`a frame of kind ${kind} interrupts a streamed message`);
    }
    const lane = (flags & frameFlag.urgent) === 0 ? this.#ordered : this.#urgentLane();
    const reset = (flags & frameFlag.reset) !== 0;
    switch (kind) {
      case frameKind.plain:
        return this.#deliver(lane.decoder.decode(bytes, start, end, undefined, reset));
      case frameKind.attached: {
        const head = readMessageHead(bytes, start, end, attachBytes);
        if (head.valueEnd + head.areaBytes !== end) throw protocolError("an attached area has a wrong size");
        const area = new Uint8Array(head.areaBytes);
        area.set(bytes.subarray(head.valueEnd, end));
        const buffers = buffersOf(area.buffer, 0, head.sizes);
        return this.#deliver(lane.decoder.decode(bytes, head.valueStart, head.valueEnd, buffers, reset));
      }
      case frameKind.streamed:
        return this.#startReceiving(bytes, start, end, flags, reset);
      case frameKind.segment:
        return this.#receiveSegment(bytes, start, end, flags, reset);
      case frameKind.released:
      case frameKind.retired:
        return this.#readReports(kind, bytes, start, end);
      case frameKind.goodbye:
        this.#orderly = true;
        if (this.#state === "open") this.#sayGoodbye();
        return;
      default:
        throw protocolError(`a frame of kind ${kind} is out of place`);
    }
  }

  chunkStart(bodyBytes: number): void {
    const receiving = this.#receiving;
    if (receiving === undefined || bodyBytes > receiving.area.length - receiving.received) {
      throw protocolError("a chunk belongs to no message");
    }
  }

  chunkTarget(): Uint8Array | undefined {
    return this.#receiving?.area.subarray(this.#receiving.received);
  }

  chunkBytes(bytes: Uint8Array): void {
    const receiving = this.#receiving!;
    if (bytes.buffer !== receiving.area.buffer) receiving.area.set(bytes, receiving.received);
    receiving.received += bytes.length;
    if (receiving.received < receiving.area.length) return;
    this.#receiving = undefined; // SK4
    const { head, area, value, reset } = receiving;
    const buffers = buffersOf(area.buffer as ArrayBuffer, 0, head.sizes);
    this.#deliver(this.#ordered.decoder.decode(value, 0, value.length, buffers, reset));
  }

  /** What the endpoint calls with bytes; SK2. */
  receive(bytes: Uint8Array): void {
    try {
      this.#reader.push(bytes);
    } catch (error) {
      this.#destroy(error instanceof TreadleError ? error : protocolError("a frame cannot be read", error));
    }
  }

  #startReceiving(bytes: Uint8Array, start: number, end: number, flags: number, reset: boolean): void {
    if ((flags & frameFlag.urgent) !== 0) throw protocolError("an urgent message is streamed");
    const head = readMessageHead(bytes, start, end, this.#limits.maxAreaBytes);
    if (head.valueEnd !== end || head.areaBytes <= attachBytes) throw protocolError("a streamed area has a wrong size");
    const value = Uint8Array.prototype.slice.call(bytes, head.valueStart, head.valueEnd);
    // Memory with any content will do: every byte is written before the message is delivered (SK4).
    this.#receiving = {
      head,
      value,
      reset,
      area: new Uint8Array(takeMemory(head.areaBytes), 0, head.areaBytes),
      received: 0,
    };
  }

  #receiveSegment(bytes: Uint8Array, start: number, end: number, flags: number, reset: boolean): void {
    if (this.#segments === undefined || (flags & frameFlag.urgent) !== 0)
      throw protocolError("no memory is shared here");
    const head = readMessageHead(bytes, start, end, this.#limits.maxAreaBytes);
    if (head.valueEnd !== end) throw protocolError("a message in shared memory has a wrong size");
    const isTogether = (flags & frameFlag.together) !== 0;
    const buffers = buffersOf(this.#segments.borrow(head.segment, head.areaBytes, isTogether), 0, head.sizes);
    this.#deliver(this.#ordered.decoder.decode(bytes, head.valueStart, head.valueEnd, buffers, reset));
  }

  #readReports(kind: number, bytes: Uint8Array, start: number, end: number): void {
    const segments = this.#segments;
    if (segments === undefined || (end - start) % 4 !== 0) throw protocolError("no memory is shared here");
    const view = new DataView(bytes.buffer, bytes.byteOffset + start, end - start);
    for (let at = 0; at < end - start; at += 4) {
      const segment = view.getUint32(at, true);
      if (kind === frameKind.released) segments.takeBack(segment);
      else segments.forget(segment);
    }
  }

  /** Reports on a segment; the reports of one turn share a frame. */
  #report(reports: number[], kind: number, segment: number): void {
    if (reports.push(segment) > 1) return;
    process.nextTick(() => {
      const segments = reports.splice(0);
      if (this.#state !== "open") return;
      const frame = Buffer.allocUnsafe(headBytes + segments.length * 4);
      writeHead(frame, segments.length * 4, kind, frameFlag.urgent);
      for (const [index, number] of segments.entries()) frame.writeUInt32LE(number, headBytes + index * 4);
      this.#outbox.add(frame, true);
    });
  }

  #deliver(message: unknown): void {
    if (this.#listener === undefined || this.#undelivered.length > 0) {
      this.#undelivered.push(message);
      this.#socket.pause();
      return;
    }
    this.#hand(message);
  }

  #hand(message: unknown): void {
    try {
      this.#listener?.(message);
    } catch (error) {
      // A listener's bug is its own: the link goes on, and the error surfaces as uncaught.
      queueMicrotask(() => {
        throw error;
      });
    }
  }

  #urgentLane(): { encoder: Encoder; decoder: Decoder } {
    this.#urgent ??= { encoder: new Encoder(), decoder: new Decoder() };
    return this.#urgent;
  }

  #sayGoodbye(): void {
    this.#state = "closing";
    const goodbye = Buffer.alloc(headBytes);
    writeHead(goodbye, 0, frameKind.goodbye, 0);
    this.#outbox.add(goodbye, false);
    this.#outbox.end();
    this.#orderly = true;
    this.#cutOffLater();
  }

  /** One side has ended its half; the other has so long to take what is queued and to end its own. */
  #cutOffLater(): void {
    const timer = setTimeout(() => this.#socket.destroy(), closeDeadlineMs);
    timer.unref();
    this.#socket.once("close", () => clearTimeout(timer));
  }

  #destroy(cause: Error): void {
    if (this.#state === "closed") return;
    this.#cause = cause;
    this.#orderly = false;
    this.#reader.stop();
    this.#socket.destroy();
    this.#finish();
  }

  #finish(): void {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#reader.stop();
    this.#receiving = undefined;
    if (!this.#orderly && this.#cause === undefined) {
      this.#cause = new TreadleError("link.closed", `'${this.remote}' went away: its connection broke`, {
        cause: this.#socketError,
      });
    }
    this.#outbox.close(this.#closedError());
    this.#segments?.close();
    for (const listener of this.#closeListeners) listener(this.#cause); // SK3
    this.#closeListeners = [];
  }

  #closedError(): TreadleError {
    const cause = this.#cause === undefined ? {} : { cause: this.#cause };
    return new TreadleError("link.closed", `link to '${this.remote}' is closed: nothing more can be sent on it`, cause);
  }

  #tooLarge(encoder: Encoder, encoded: Encoded, bytes: number, limit: keyof LinkLimits | "urgent"): TreadleError {
    encoder.discard();
    const allowed = limit === "urgent" ? attachBytes : this.#limits[limit];
    const remedy = limit === "urgent" ? "send it without urgent" : `send it in parts or raise ${limit}`;
    return new TreadleError(
      "link.frame-too-large",
      `a message to '${this.remote}' takes '${bytes}' bytes, at most ${allowed} are allowed; ${remedy}`,
      { details: { bytes, allowed, buffers: encoded.buffers.length } },
    );
  }
}
