/**
 * Values to bytes and back: msgpackr for structure, raw bytes beside it for typed arrays.
 *
 * A connection has one encoder and one decoder a lane: they remember the shapes of objects, so values must be decoded
 * in the order in which they were encoded. `encodeItem` / `decodeItem` remember nothing.
 */

import { Packr, RESERVE_START_SPACE, Unpackr } from "msgpackr";
import { protocolError } from "../protocol-error.ts";
import { HeaderCheck } from "./header-check.ts";
import { bufferAlignment, locateUnsupported, maxBuffers, TakeOut, withOutsideBytes } from "./typed-arrays.ts";

/** Shapes that one encoder remembers; the ids are single bytes from 0x40. */
const maxShapes = 64;

/** How every value is written, on links and in items. */
export const codecOptions = {
  useRecords: true,
  mapsAsObjects: false,
  moreTypes: true,
  useBigIntExtension: true,
  structuredClone: false,
  useToJSON: false,
};

/** A value as it travels: `header` has `reserve` free bytes in front. */
export type Encoded = {
  readonly header: Uint8Array;
  /** Raw bytes of the large typed arrays, in order; views of the caller's memory, not copies. */
  readonly buffers: readonly Uint8Array[];
  readonly buffersBytes: number;
  /** The decoder must forget all shapes before it reads this value. */
  readonly reset: boolean;
};

const noBuffers: readonly Uint8Array[] = [];

export class Encoder {
  #packr = new Packr({ ...codecOptions, sequential: true, maxOwnStructures: maxShapes });
  #reset = false;

  /**
   * Encodes with `reserve` (at most 255) free bytes in front of the header.
   * Throws `link.unsupported-value`.
   */
  encode(value: unknown, reserve = 0): Encoded {
    const takeOut = new TakeOut();
    const replaced = takeOutOf(value, takeOut);
    let header: Uint8Array;
    try {
      header = this.#packr.pack(replaced, RESERVE_START_SPACE + reserve);
    } catch (error) {
      this.discard();
      throw error;
    }
    const reset = this.#reset;
    this.#reset = false;
    const buffers = takeOut.buffers.length === 0 ? noBuffers : takeOut.buffers;
    return { header, buffers, buffersBytes: takeOut.totalBytes, reset };
  }

  /** What was encoded last will not be sent: the shapes it introduced are unknown to the decoder, so start afresh. */
  discard(): void {
    this.#packr = new Packr({ ...codecOptions, sequential: true, maxOwnStructures: maxShapes });
    this.#reset = true;
  }
}

export class Decoder {
  #unpackr = new Unpackr({ ...codecOptions, sequential: true });
  readonly #check = new HeaderCheck();

  /**
   * Decodes `bytes[start, end)`. `buffers` are what the encoder put beside it; the result views them.
   * Throws `link.protocol`, and only that, on anything that an encoder does not write; it is of no use afterwards.
   */
  decode(
    bytes: Uint8Array,
    start: number,
    end: number,
    buffers: readonly Uint8Array[] = noBuffers,
    reset = false,
  ): unknown {
    if (reset) {
      this.#unpackr = new Unpackr({ ...codecOptions, sequential: true });
      this.#check.forgetShapes();
    }
    this.#check.run(bytes, start, end);
    const length = end - start;
    if (length > scratch.length || buffers.length > 0) {
      return decodeChecked(this.#unpackr, bytes.subarray(start, end), buffers);
    }
    // Nothing decoded points into its source, so short values share one, which spares two objects a message.
    for (let index = 0; index < length; index++) scratch[index] = bytes[start + index]!;
    scratchRange.end = length;
    return decodeChecked(this.#unpackr, scratch, buffers, scratchRange);
  }
}

function takeOutOf(value: unknown, takeOut: TakeOut): unknown {
  try {
    return takeOut.replace(value);
  } catch (error) {
    throw locateUnsupported(value, error);
  }
}

const scratch = Buffer.allocUnsafeSlow(256);
const scratchRange = { start: 0, end: 0 };

export function decodeChecked(
  unpackr: Unpackr,
  header: Uint8Array,
  buffers: readonly Uint8Array[],
  range?: { start: number; end: number },
): unknown {
  try {
    if (buffers.length === 0) return unpackr.unpack(header, range);
    return withOutsideBytes(buffers, () => unpackr.unpack(header));
  } catch (error) {
    throw protocolError("a value cannot be decoded", error);
  }
}

export function alignUp(size: number): number {
  return Math.ceil(size / bufferAlignment) * bufferAlignment;
}

const itemVersion = 1;
const itemFixedBytes = 12;

/** A value that is ready to be written into a block of memory of at least `sizeBytes`, a multiple of 64. */
export type PlacedItem = { readonly sizeBytes: number; writeTo(target: Uint8Array): void };

/**
 * Encodes all of a value but its large typed arrays, which `writeTo` copies once, to where they shall lie.
 * Layout, little-endian: u32 version, u32 number of buffers, u32 header bytes, f64 size of each buffer, header, then the
 * buffers, each at a multiple of 64 from the start; padded to a multiple of 64.
 */
export function placeItem(value: unknown): PlacedItem {
  const takeOut = new TakeOut();
  const replaced = takeOut.replace(value);
  const header = itemPackr.pack(replaced);
  const { buffers } = takeOut;
  const headerAt = itemFixedBytes + buffers.length * 8;
  let size = headerAt + header.length;
  for (const buffer of buffers) size = alignUp(size) + buffer.length;
  return {
    sizeBytes: alignUp(size),
    writeTo(target) {
      const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
      view.setUint32(0, itemVersion, true);
      view.setUint32(4, buffers.length, true);
      view.setUint32(8, header.length, true);
      target.set(header, headerAt);
      let position = headerAt + header.length;
      for (const [index, buffer] of buffers.entries()) {
        view.setFloat64(itemFixedBytes + index * 8, buffer.length, true);
        position = alignUp(position);
        target.set(buffer, position);
        position += buffer.length;
      }
    },
  };
}

/** A value as one block of opaque bytes that anyone may store and `decodeItem` reads later. */
export function encodeItem(value: unknown): Uint8Array {
  const placed = placeItem(value);
  const item = new Uint8Array(placed.sizeBytes);
  placed.writeTo(item);
  return item;
}

/**
 * The inverse of `encodeItem`. Large typed arrays view `item` where its alignment allows, and are copies elsewhere.
 * Throws `link.protocol`, and only that.
 */
export function decodeItem(item: Uint8Array): unknown {
  if (item.length < itemFixedBytes) throw protocolError("an item is cut off");
  const view = new DataView(item.buffer, item.byteOffset, item.byteLength);
  const version = view.getUint32(0, true);
  if (version !== itemVersion) throw protocolError(`an item has version ${version}, and ${itemVersion} is known`);
  const count = view.getUint32(4, true);
  if (count > maxBuffers) throw protocolError(`an item announces ${count} buffers, and ${maxBuffers} are allowed`);
  const headerAt = itemFixedBytes + count * 8;
  const headerEnd = headerAt + view.getUint32(8, true);
  if (headerEnd > item.length) throw protocolError("an item is cut off");
  const buffers: Uint8Array[] = [];
  let position = headerEnd;
  for (let index = 0; index < count; index++) {
    const length = view.getFloat64(itemFixedBytes + index * 8, true);
    position = alignUp(position);
    if (!(Number.isSafeInteger(length) && length >= 0 && length <= item.length - position)) {
      throw protocolError("an item is cut off");
    }
    buffers.push(item.subarray(position, position + length));
    position += length;
  }
  itemCheck.forgetShapes();
  itemCheck.run(item, headerAt, headerEnd);
  return decodeChecked(new Unpackr({ ...codecOptions }), item.subarray(headerAt, headerEnd), buffers);
}

const itemPackr = new Packr({ ...codecOptions, maxOwnStructures: maxShapes });
const itemCheck = new HeaderCheck();
