/**
 * Many values as one block of opaque bytes that anyone may cut between values, store, reorder and join again.
 *
 * The names of the fields that values share stand beside the block, once, as `shapes`, so that each value is small and
 * decodes with a reader made for its shape. A block without shapes holds `encodeItem`'s encodings, which stand alone:
 * values with large typed arrays travel so.
 */

import { Packr, RESET_BUFFER_MODE, REUSE_BUFFER_MODE, Unpackr } from "msgpackr";
import { protocolError } from "../protocol-error.ts";
import { codecOptions, decodeChecked, decodeItem, type PlacedItem, placeItem } from "./codec.ts";
import { HeaderCheck } from "./header-check.ts";
import { giveMemory, takeMemory } from "./received-arrays.ts";
import { TakeOut } from "./typed-arrays.ts";

/** The keys of each shape, in the order of their ids. */
export type Shapes = readonly (readonly string[])[];

/** Values one after the other in `data`; `lengths` are their sizes in bytes. */
export type ItemBlock = {
  readonly data: Uint8Array;
  readonly lengths: Uint32Array;
  readonly shapes?: Shapes | undefined;
  readonly kept?: readonly KeptItem[] | undefined;
};

/** An item of a block that lies elsewhere; its length in the block is 0. */
export type KeptItem = { readonly index: number; readonly segment: string; readonly sizeBytes: number };

/** Where items above a size go instead of into the block. */
export type KeepLarge = {
  readonly aboveBytes: number;
  /** undefined when there is no room, and the item stays in the block */
  readonly write: (item: PlacedItem) => string | undefined;
};

/** Shapes beside a block; further ones stand inside of the values. */
const maxShapes = 32;
/** Dictionaries make a shape of every set of keys; past this many keys an encoder forgets the shapes that it knows. */
const maxKeys = 512;

/** Each value is packed over the one before, and copied to its place from there. */
const packMode = REUSE_BUFFER_MODE | RESET_BUFFER_MODE;
const minBlockBytes = 4096;

/** Encodes blocks for one receiver after another; remembers the shapes of earlier blocks, so that few are sought anew. */
export class ItemEncoder {
  #structures: string[][] = [];
  #packr = new Packr();
  #shapes: Shapes = [];
  /** Of the block before: a good guess at the size of the next. */
  #lastBytes = 0;

  constructor() {
    this.#forget();
  }

  /** The block's memory serves again once `giveMemory` has it back. Throws `link.unsupported-value`. */
  encode(values: readonly unknown[], keep?: KeepLarge): ItemBlock {
    const lengths = new Uint32Array(values.length);
    const kept: KeptItem[] = [];
    let data: Uint8Array = new Uint8Array(takeMemory(Math.max(minBlockBytes, this.#lastBytes)));
    let sizeBytes = 0;
    for (let index = 0; index < values.length; index++) {
      const takeOut = new TakeOut();
      const replaced = takeOut.replace(values[index]);
      if (takeOut.buffers.length > 0) return encodeAlone(values, keep);
      const encoding = this.#pack(replaced);
      const { length } = encoding;
      if (keep !== undefined && length > keep.aboveBytes && keepItem(values[index], index, keep, kept)) continue;
      if (sizeBytes + length > data.length) data = grow(data, sizeBytes, sizeBytes + length);
      data.set(encoding, sizeBytes);
      lengths[index] = length;
      sizeBytes += length;
    }
    this.#lastBytes = sizeBytes;
    const shapes = this.#currentShapes();
    if (shapes.reduce((sum, keys) => sum + keys.length, 0) > maxKeys) this.#forget();
    const block = { data: fit(data, sizeBytes), lengths, shapes };
    return kept.length === 0 ? block : { ...block, kept };
  }

  /** Valid until the next call. */
  #pack(value: unknown): Uint8Array {
    try {
      const packed = this.#packr.pack(value, packMode) as Buffer & { start?: number; end?: number };
      // Without bounds when it introduced a shape.
      if (packed.start === undefined) return packed;
      return new Uint8Array(packed.buffer, packed.byteOffset + packed.start, (packed.end as number) - packed.start);
    } catch (error) {
      this.#forget(); // it may know shapes by halves
      throw error;
    }
  }

  #currentShapes(): Shapes {
    const numShapes = Math.min(maxShapes, this.#structures.length);
    if (numShapes !== this.#shapes.length) this.#shapes = this.#structures.slice(0, numShapes).map((keys) => [...keys]);
    return this.#shapes;
  }

  #forget(): void {
    this.#structures = [];
    this.#shapes = [];
    this.#packr = new Packr({
      ...codecOptions,
      structures: this.#structures as unknown as object[],
      maxSharedStructures: maxShapes,
      saveStructures: () => {},
    });
  }
}

/** The block's bytes so far in more memory. */
function grow(data: Uint8Array, usedBytes: number, neededBytes: number): Uint8Array {
  const grown = new Uint8Array(takeMemory(Math.max(neededBytes, data.length * 2)));
  grown.set(data.subarray(0, usedBytes));
  giveMemory(data);
  return grown;
}

/** Whoever keeps a small block keeps no large memory for it. */
function fit(data: Uint8Array, usedBytes: number): Uint8Array {
  if (usedBytes * 2 > data.length) return data.subarray(0, usedBytes);
  const small = data.slice(0, usedBytes);
  giveMemory(data);
  return small;
}

function encodeAlone(values: readonly unknown[], keep: KeepLarge | undefined): ItemBlock {
  const kept: KeptItem[] = [];
  const encodings = values.map((value, index) => {
    const item = placeItem(value);
    if (keep !== undefined && item.sizeBytes > keep.aboveBytes && keepPlaced(item, index, keep, kept)) return undefined;
    const bytes = new Uint8Array(item.sizeBytes);
    item.writeTo(bytes);
    return bytes;
  });
  const block = join(encodings);
  return kept.length === 0 ? block : { ...block, kept };
}

const keepItem = (value: unknown, index: number, keep: KeepLarge, kept: KeptItem[]) =>
  keepPlaced(placeItem(value), index, keep, kept);

function keepPlaced(item: PlacedItem, index: number, keep: KeepLarge, kept: KeptItem[]): boolean {
  const segment = keep.write(item);
  if (segment === undefined) return false;
  kept.push({ index, segment, sizeBytes: item.sizeBytes });
  return true;
}

/** Items that are kept elsewhere have no encoding here. */
function join(encodings: readonly (Uint8Array | undefined)[]): { data: Uint8Array; lengths: Uint32Array } {
  const lengths = new Uint32Array(encodings.length);
  let sizeBytes = 0;
  for (let index = 0; index < encodings.length; index++) {
    const length = encodings[index]?.length ?? 0;
    lengths[index] = length;
    sizeBytes += length;
  }
  if (encodings.length === 1 && encodings[0] !== undefined) return { data: encodings[0], lengths };
  const data = new Uint8Array(sizeBytes);
  let at = 0;
  for (let index = 0; index < encodings.length; index++) {
    const encoding = encodings[index];
    if (encoding === undefined) continue;
    data.set(encoding, at);
    at += encoding.length;
  }
  return { data, lengths };
}

const noBuffers: readonly Uint8Array[] = [];

/** Reads the values of one set of shapes. */
class ShapeDecoder {
  readonly #unpackr: Unpackr;
  readonly #numKeys: readonly number[];

  constructor(shapes: Shapes) {
    if (shapes.length > maxShapes)
      throw protocolError(`${shapes.length} shapes are announced, and ${maxShapes} are allowed`);
    this.#numKeys = shapes.map((keys) => keys.length);
    const structures = shapes.map((keys) => [...keys]) as unknown as object[];
    this.#unpackr = new Unpackr({ ...codecOptions, structures, maxSharedStructures: maxShapes });
  }

  decode({ data, lengths }: ItemBlock, keptOf: KeptValues): unknown[] {
    check.knowShapes(this.#numKeys, 0x40 + maxShapes);
    const source = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    const values = new Array<unknown>(lengths.length);
    const range = { start: 0, end: 0 };
    for (let index = 0; index < values.length; index++) {
      range.start = range.end;
      range.end += lengths[index] as number;
      if (range.start === range.end) {
        values[index] = keptOf(index);
        continue;
      }
      check.run(source, range.start, range.end);
      values[index] = decodeChecked(this.#unpackr, source, noBuffers, range);
    }
    return values;
  }
}

const check = new HeaderCheck();
const decoders = new Map<string, ShapeDecoder>();
const maxDecoders = 64;
/** Shapes beyond this length, which no encoder of ours repeats, are not remembered. */
const maxKeyLength = 64 * 1024;

/** The value of an item that is not in its block. */
type KeptValues = (index: number) => unknown;

/**
 * The inverse of `ItemEncoder.encode`, of any block cut and joined from its; `read` fetches what is kept elsewhere.
 * Throws `link.protocol`, and only that.
 */
export function decodeItems(block: ItemBlock, read?: (item: KeptItem) => unknown): unknown[] {
  const { data, lengths, shapes } = block;
  let sizeBytes = 0;
  for (const length of lengths) sizeBytes += length;
  if (sizeBytes !== data.byteLength) {
    throw protocolError(`a block announces ${sizeBytes} bytes of items and holds ${data.byteLength}`);
  }
  const kept = new Map(block.kept?.map((each) => [each.index, each]));
  const keptOf = (index: number): unknown => {
    const item = kept.get(index);
    if (item === undefined || read === undefined) throw protocolError(`item ${index} of a block is empty`);
    return read(item);
  };
  if (shapes === undefined) return decodeAlone(data, lengths, keptOf);
  const key = JSON.stringify(shapes);
  let decoder = decoders.get(key);
  if (decoder === undefined) {
    decoder = new ShapeDecoder(shapes);
    if (decoders.size >= maxDecoders) decoders.delete(decoders.keys().next().value as string);
    if (key.length <= maxKeyLength) decoders.set(key, decoder);
  }
  try {
    return decoder.decode(block, keptOf);
  } catch (error) {
    decoders.delete(key); // what it was reading may have left traces in it
    throw error;
  }
}

function decodeAlone(data: Uint8Array, lengths: Uint32Array, keptOf: KeptValues): unknown[] {
  let at = 0;
  return Array.from(lengths, (length, index) => {
    if (length === 0) return keptOf(index);
    at += length;
    return decodeItem(data.subarray(at - length, at));
  });
}
