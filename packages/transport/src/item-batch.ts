/**
 * Many values as one block of opaque bytes that anyone may cut between values, store, reorder and join again.
 *
 * The names of the fields that values share stand beside the block, once, as `shapes`, so that each value is small and
 * decodes with a reader made for its shape. A block without shapes holds `encodeItem`'s encodings, which stand alone:
 * values with large typed arrays travel so.
 */

import { Packr, Unpackr } from "msgpackr";
import { codecOptions, decodeChecked, decodeItem, placeItem } from "./codec.ts";
import { HeaderCheck } from "./header-check.ts";
import { protocolError } from "./protocol-error.ts";
import { TakeOut } from "./typed-arrays.ts";

/** The keys of each shape, in the order of their ids. */
export type Shapes = readonly (readonly string[])[];

/** Values one after the other in `data`; `lengths` are their sizes in bytes. */
export type ItemBlock = {
  readonly data: Uint8Array;
  readonly lengths: Uint32Array;
  readonly shapes?: Shapes | undefined;
};

/** Shapes beside a block; further ones stand inside of the values. */
const maxShapes = 32;
/** Dictionaries make a shape of every set of keys; past this many keys an encoder forgets the shapes that it knows. */
const maxKeys = 512;

/** Encodes blocks for one receiver after another; remembers the shapes of earlier blocks, so that few are sought anew. */
export class ItemEncoder {
  #structures: string[][] = [];
  #packr = new Packr();
  #shapes: Shapes = [];

  constructor() {
    this.#forget();
  }

  /** Throws `link.unsupported-value`. */
  encode(values: readonly unknown[]): ItemBlock {
    const lengths = new Uint32Array(values.length);
    const encodings = new Array<Uint8Array>(values.length);
    let sizeBytes = 0;
    for (let index = 0; index < values.length; index++) {
      const takeOut = new TakeOut();
      const replaced = takeOut.replace(values[index]);
      if (takeOut.buffers.length > 0) return encodeAlone(values);
      const encoding = this.#pack(replaced);
      encodings[index] = encoding;
      lengths[index] = encoding.length;
      sizeBytes += encoding.length;
    }
    const data = new Uint8Array(sizeBytes);
    let at = 0;
    for (const encoding of encodings) {
      data.set(encoding, at);
      at += encoding.length;
    }
    const shapes = this.#currentShapes();
    if (shapes.reduce((sum, keys) => sum + keys.length, 0) > maxKeys) this.#forget();
    return { data, lengths, shapes };
  }

  #pack(value: unknown): Uint8Array {
    try {
      return this.#packr.pack(value);
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

function encodeAlone(values: readonly unknown[]): ItemBlock {
  const placed = values.map((value) => placeItem(value));
  const lengths = Uint32Array.from(placed, (item) => item.sizeBytes);
  const data = new Uint8Array(placed.reduce((sum, item) => sum + item.sizeBytes, 0));
  let at = 0;
  for (const item of placed) {
    item.writeTo(data.subarray(at, at + item.sizeBytes));
    at += item.sizeBytes;
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

  decode({ data, lengths }: ItemBlock): unknown[] {
    check.knowShapes(this.#numKeys, 0x40 + maxShapes);
    const source = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    const values = new Array<unknown>(lengths.length);
    const range = { start: 0, end: 0 };
    for (let index = 0; index < values.length; index++) {
      range.start = range.end;
      range.end += lengths[index] as number;
      if (range.start === range.end) throw protocolError("an item is empty");
      check.run(source, range.start, range.end);
      values[index] = decodeChecked(this.#unpackr, source, noBuffers, range);
    }
    return values;
  }
}

const check = new HeaderCheck();
const decoders = new Map<string, ShapeDecoder>();
const maxDecoders = 64;

/** The inverse of `ItemEncoder.encode`, of any block cut and joined from its. Throws `link.protocol`, and only that. */
export function decodeItems(block: ItemBlock): unknown[] {
  const { data, lengths, shapes } = block;
  let sizeBytes = 0;
  for (const length of lengths) sizeBytes += length;
  if (sizeBytes !== data.byteLength) {
    throw protocolError(`a block announces ${sizeBytes} bytes of items and holds ${data.byteLength}`);
  }
  if (shapes === undefined) return decodeAlone(data, lengths);
  const key = JSON.stringify(shapes);
  let decoder = decoders.get(key);
  if (decoder === undefined) {
    decoder = new ShapeDecoder(shapes);
    if (decoders.size >= maxDecoders) decoders.delete(decoders.keys().next().value as string);
    decoders.set(key, decoder);
  }
  try {
    return decoder.decode(block);
  } catch (error) {
    decoders.delete(key); // what it was reading may have left traces in it
    throw error;
  }
}

function decodeAlone(data: Uint8Array, lengths: Uint32Array): unknown[] {
  let at = 0;
  return Array.from(lengths, (length) => {
    at += length;
    return decodeItem(data.subarray(at - length, at));
  });
}
