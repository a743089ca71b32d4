/** The same work without the transport: what its figures are compared with. */

import { closeSync, openSync, rmSync, writeSync } from "node:fs";
import type { Socket } from "node:net";
import { join } from "node:path";
import { segmentFolder, sharedMemory, unlinkSegment } from "@treadle/transport/internal";

/** What the far end does with the bytes that it gets on the bare socket. */
export type HandMode =
  | { readonly kind: "echo" }
  | { readonly kind: "count"; readonly bytes: number }
  | { readonly kind: "file"; readonly path: string; readonly bytes: number }
  | { readonly kind: "mapped"; readonly name: string; readonly bytes: number };

const cacheLineBytes = 64;
let touched = 0;

/** Reads something of every cache line, so that memory which was only promised is paid for. */
export function touch(data: Uint8Array | Float32Array): number {
  const step = cacheLineBytes / data.BYTES_PER_ELEMENT;
  for (let index = 0; index < data.length; index += step) touched += data[index]!;
  return touched;
}

/** Sends bytes and resolves when as many have come back as were asked for. */
export function exchange(socket: Socket, bytes: Uint8Array, answerBytes: number): Promise<void> {
  return new Promise((resolve) => {
    let received = 0;
    const onData = (data: Buffer) => {
      received += data.length;
      if (received < answerBytes) return;
      socket.off("data", onData);
      resolve();
    };
    socket.on("data", onData);
    socket.write(bytes);
  });
}

export type Hand = { readonly mode: HandMode; write(data: Uint8Array): void; dispose(): void };

/** Writes into a file in shared memory that the far end reads into a reused buffer. */
export function fileByHand(name: string, bytes: number): Hand {
  const path = join(segmentFolder, name);
  const fd = openSync(path, "w+", 0o600);
  return {
    mode: { kind: "file", path, bytes },
    write(data) {
      for (let at = 0; at < data.length; ) at += writeSync(fd, data, at, data.length - at, at);
    },
    dispose() {
      closeSync(fd);
      rmSync(path, { force: true });
    },
  };
}

/** Copies into mapped memory that the far end copies out of; undefined where memory cannot be mapped. */
export function mappedByHand(name: string, bytes: number): Hand | undefined {
  const memory = sharedMemory();
  const mapping = memory?.create(name, bytes);
  if (memory === undefined || mapping === undefined) return undefined;
  const target = new Uint8Array(memory.view(mapping, bytes));
  return {
    mode: { kind: "mapped", name, bytes },
    write: (data) => target.set(data),
    dispose() {
      unlinkSegment(name);
      memory.unmap(mapping);
    },
  };
}
