/**
 * One stream of bytes between two sockets of different machines, as core NATS messages. Runs on the relay's thread.
 *
 * TU1 bytes arrive in order, each once, or the tunnel ends: every message says which byte it begins with, and every beat how
 *    many there were, so one that NATS dropped is noticed whatever follows it.
 * TU2 at most `windowBytes` are on their way; a side that does not read stops the other's socket, which stops its sender.
 * TU3 no message is larger than the server takes.
 * TU4 a side that is not heard for `silenceMs` is gone; whatever ends a tunnel ends both sockets.
 */
import type { Socket } from "node:net";

export const windowBytes = 4 * 1024 * 1024;
const maxChunkBytes = 256 * 1024;
const beatMs = 2000;
const silenceMs = 10_000;
const headBytes = 9;

const kinds = { data: 0, credit: 1, end: 2, reset: 3, beat: 4 } as const;

/** How a side's messages leave. */
export type TunnelWire = {
  readonly publish: (message: Uint8Array) => void;
  /** the largest message that the server takes */
  readonly maxBytes: number;
  /** called once */
  readonly ended: () => void;
};

export class Tunnel {
  readonly #socket: Socket;
  readonly #wire: TunnelWire;
  readonly #timer: NodeJS.Timeout;
  #sent = 0;
  /** of what was sent: what the other side's socket has taken */
  #taken = 0;
  #received = 0;
  /** of what was received: what this side's socket has taken */
  #written = 0;
  #credited = 0;
  #heardMs = performance.now();
  #hasEnded = { own: false, other: false };
  #over = false;

  constructor(socket: Socket, wire: TunnelWire) {
    this.#socket = socket;
    this.#wire = wire;
    socket.on("data", (bytes) => this.#send(bytes));
    socket.on("end", () => {
      this.#hasEnded.own = true;
      this.#post(kinds.end, this.#sent);
    });
    socket.on("error", () => {});
    socket.on("close", () => this.#close(!(this.#hasEnded.own && this.#hasEnded.other)));
    this.#timer = setInterval(() => this.#beat(), beatMs);
  }

  /** A message of the other side; garbage ends the tunnel. */
  receive(message: Uint8Array): void {
    if (this.#over) return;
    if (message.byteLength < headBytes) {
      this.#close(true);
      return;
    }
    this.#heardMs = performance.now();
    const at = Number(new DataView(message.buffer, message.byteOffset, message.byteLength).getBigUint64(1));
    switch (message[0]) {
      case kinds.data:
        this.#take(at, message.subarray(headBytes));
        break;
      case kinds.credit:
        this.#credit(at);
        break;
      case kinds.beat:
        if (at === this.#received) this.#post(kinds.credit, this.#written);
        else this.#close(true); // TU1
        break;
      case kinds.end:
        if (at !== this.#received) this.#close(true); // TU1
        this.#hasEnded.other = true;
        this.#socket.end();
        break;
      default:
        this.#close(false);
    }
  }

  /** Ends both sides at once. */
  close(): void {
    this.#close(true);
  }

  #take(at: number, bytes: Uint8Array): void {
    if (at !== this.#received || this.#received + bytes.byteLength - this.#written > 2 * windowBytes) {
      this.#close(true); // TU1, TU2
      return;
    }
    this.#received += bytes.byteLength;
    this.#socket.write(bytes, (error) => {
      if (error || this.#over) return;
      this.#written += bytes.byteLength;
      if (this.#written - this.#credited < windowBytes / 4) return;
      this.#credited = this.#written;
      this.#post(kinds.credit, this.#written);
    });
  }

  #credit(taken: number): void {
    if (taken > this.#sent) {
      this.#close(true);
      return;
    }
    this.#taken = Math.max(this.#taken, taken);
    if (this.#sent - taken < windowBytes && this.#socket.isPaused()) this.#socket.resume();
  }

  #send(bytes: Buffer): void {
    const largest = Math.min(maxChunkBytes, this.#wire.maxBytes - headBytes); // TU3
    for (let at = 0; at < bytes.length; at += largest) {
      const chunk = bytes.subarray(at, at + largest);
      this.#post(kinds.data, this.#sent, chunk);
      this.#sent += chunk.length;
    }
    if (this.#sent - this.#taken >= windowBytes) this.#socket.pause(); // TU2
  }

  #beat(): void {
    if (performance.now() - this.#heardMs > silenceMs)
      this.#close(true); // TU4
    else this.#post(kinds.beat, this.#sent);
  }

  #post(kind: number, at: number, body: Uint8Array = new Uint8Array()): void {
    if (this.#over) return;
    const message = Buffer.allocUnsafe(headBytes + body.byteLength);
    message[0] = kind;
    message.writeBigUInt64BE(BigInt(at), 1);
    message.set(body, headBytes);
    this.#wire.publish(message);
  }

  #close(tellsOther: boolean): void {
    if (this.#over) return;
    if (tellsOther) this.#post(kinds.reset, 0);
    this.#over = true;
    clearInterval(this.#timer);
    this.#socket.destroy();
    this.#wire.ended();
  }
}
