/**
 * The head of a message that carries typed arrays: u32 number of buffers, u32 bytes of the encoded value, u32 segment
 * (0 when the area does not lie in one), u32 zero, then the f64 size of each buffer. The *area* is the buffers in order,
 * each at a multiple of 64 bytes.
 */

import { protocolError } from "../protocol-error.ts";
import { alignUp } from "./codec.ts";
import { maxBuffers } from "./typed-arrays.ts";

const fixedBytes = 16;

export type MessageHead = {
  readonly sizes: readonly number[];
  readonly segment: number;
  readonly areaBytes: number;
  /** Where the encoded value starts and ends in the frame. */
  readonly valueStart: number;
  readonly valueEnd: number;
};

export function areaBytesOf(buffers: readonly Uint8Array[]): number {
  let size = 0;
  for (const buffer of buffers) size = alignUp(size) + buffer.length;
  return size;
}

export function messageHeadBytes(buffers: readonly Uint8Array[]): number {
  return fixedBytes + buffers.length * 8;
}

export function writeMessageHead(
  target: Buffer,
  at: number,
  buffers: readonly Uint8Array[],
  valueBytes: number,
  segment: number,
): void {
  target.writeUInt32LE(buffers.length, at);
  target.writeUInt32LE(valueBytes, at + 4);
  target.writeUInt32LE(segment, at + 8);
  target.writeUInt32LE(0, at + 12);
  for (let index = 0; index < buffers.length; index++) {
    target.writeDoubleLE(buffers[index]!.length, at + fixedBytes + index * 8);
  }
}

/** Throws `link.protocol` on anything that `writeMessageHead` does not write or that exceeds `maxAreaBytes`. */
export function readMessageHead(bytes: Uint8Array, start: number, end: number, maxAreaBytes: number): MessageHead {
  if (end - start < fixedBytes) throw protocolError("a message head is cut off");
  const view = new DataView(bytes.buffer, bytes.byteOffset + start, end - start);
  const count = view.getUint32(0, true);
  if (count > maxBuffers) throw protocolError(`a message announces ${count} buffers, and ${maxBuffers} are allowed`);
  const valueStart = start + fixedBytes + count * 8;
  const valueEnd = valueStart + view.getUint32(4, true);
  if (valueEnd > end) throw protocolError("a message head is cut off");
  const sizes: number[] = [];
  let areaBytes = 0;
  for (let index = 0; index < count; index++) {
    const size = view.getFloat64(fixedBytes + index * 8, true);
    if (!Number.isSafeInteger(size) || size < 0) throw protocolError("a buffer has an impossible size");
    sizes.push(size);
    areaBytes = alignUp(areaBytes) + size;
    if (areaBytes > maxAreaBytes) {
      throw protocolError(`a message announces ${areaBytes} bytes of typed arrays, and ${maxAreaBytes} are allowed`);
    }
  }
  return { sizes, segment: view.getUint32(8, true), areaBytes, valueStart, valueEnd };
}

/** The buffers of an area that starts at `offset` of `area`, as views. */
export function buffersOf(area: ArrayBuffer, offset: number, sizes: readonly number[]): Uint8Array[] {
  const buffers: Uint8Array[] = [];
  let position = 0;
  for (const size of sizes) {
    position = alignUp(position);
    buffers.push(new Uint8Array(area, offset + position, size));
    position += size;
  }
  return buffers;
}

const padding = new Uint8Array(64);

/** Cuts an area into the pieces of memory that make up `[from, from + length)` of it. */
export function* areaPieces(buffers: readonly Uint8Array[]): Generator<Uint8Array> {
  let position = 0;
  for (const buffer of buffers) {
    const start = alignUp(position);
    if (start > position) yield padding.subarray(0, start - position);
    if (buffer.length > 0) yield buffer;
    position = start + buffer.length;
  }
}

/** Writes the area of `buffers` at `offset` of `target`. */
export function copyArea(buffers: readonly Uint8Array[], target: Uint8Array, offset: number): void {
  let position = 0;
  for (const buffer of buffers) {
    const start = alignUp(position);
    target.fill(0, offset + position, offset + start);
    target.set(buffer, offset + start);
    position = start + buffer.length;
  }
}
