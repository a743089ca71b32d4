/**
 * Takes typed arrays out of a value before it is encoded, and puts them back after it is decoded.
 *
 * The encoder never sees a typed array: `takeOut` puts a placeholder in its stead. Small ones travel inside the encoded
 * value, large ones as raw bytes beside it. The value of the caller is never changed; only what lies on the way to a
 * placeholder is copied. Negative zero, which the encoder would write as 0, gets a placeholder as well.
 */

import { TreadleError } from "@treadle/contracts";
import { addExtension } from "msgpackr";
import { protocolError } from "../protocol-error.ts";

type View = ArrayBufferView<ArrayBufferLike>;

/** A typed array up to this size travels inside the encoded value. */
export const inlineBytes = 4096;
/** …until this many bytes have done so in one message. */
const maxInlineTotalBytes = 256 * 1024;
/** Buffers beside one message; more small ones go inside, and more large ones are refused. */
export const maxBuffers = 65_536;
/** Levels of nesting in one message. */
export const maxDepth = 128;
/** Scalars in one message; a container counts `containerCost`, about what it costs in memory. */
export const maxValues = 32 * 1024 * 1024;
export const containerCost = 8;
/** Longest bigint, in bytes. */
export const maxBigintBytes = 1024;
const maxBigint = 2n ** BigInt((maxBigintBytes - 1) * 8);
/** Out-of-band buffers start at multiples of this, so that every kind of array can view them. */
export const bufferAlignment = 64;

/** The order is part of the protocol. */
const kinds = [
  Int8Array,
  Uint8Array,
  Uint8ClampedArray,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
] as const;
const dataViewKind = 20;
const arrayBufferKind = 21;
const bufferKind = 22;

const kindOfName = new Map<string, number>(kinds.map((kind, index) => [kind.name, index]));
const typedArrayTag = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag)!
  .get!;

/** MessagePack extension types of the placeholders. */
export const extensionType = { outside: 0x57, inside: 0x58, negativeZero: 0x59 } as const;

class Outside {
  readonly kind: number;
  readonly index: number;
  constructor(kind: number, index: number) {
    this.kind = kind;
    this.index = index;
  }
}

class Inside {
  readonly kind: number;
  readonly bytes: Uint8Array;
  constructor(kind: number, bytes: Uint8Array) {
    this.kind = kind;
    this.bytes = bytes;
  }
}

class NegativeZero {}
const negativeZero = new NegativeZero();

/** The bytes beside the message being decoded; decoding is synchronous, so one variable serves all decoders. */
let outsideBytes: readonly Uint8Array[] = [];

addExtension({
  Class: Outside,
  type: extensionType.outside,
  pack({ kind, index }: Outside) {
    const bytes = Buffer.allocUnsafe(5);
    bytes[0] = kind;
    bytes.writeUInt32LE(index, 1);
    return bytes;
  },
  unpack(data: Uint8Array) {
    if (data.length !== 5) throw protocolError("a reference to a typed array has a wrong length");
    const index = data[1]! + data[2]! * 2 ** 8 + data[3]! * 2 ** 16 + data[4]! * 2 ** 24;
    const bytes = outsideBytes[index];
    if (bytes === undefined)
      throw protocolError(`typed array ${index} is not among the ${outsideBytes.length} sent along`);
    return viewOf(data[0]!, bytes, false);
  },
});

addExtension({
  Class: Inside,
  type: extensionType.inside,
  pack({ kind, bytes }: Inside) {
    const data = Buffer.allocUnsafe(bytes.length + 1);
    data[0] = kind;
    data.set(bytes, 1);
    return data;
  },
  unpack(data: Uint8Array) {
    if (data.length === 0) throw protocolError("a typed array lacks its kind");
    return viewOf(data[0]!, data.subarray(1), true);
  },
});

addExtension({ Class: NegativeZero, type: extensionType.negativeZero, pack: () => Buffer.alloc(1), unpack: () => -0 });

/** A view of the kind over the bytes, or over a copy: when asked, where the alignment demands it, for ArrayBuffers. */
function viewOf(kind: number, bytes: Uint8Array, copy: boolean): unknown {
  const { length } = bytes;
  if (kind === bufferKind) return copy ? Buffer.from(bytes) : Buffer.from(bytes.buffer, bytes.byteOffset, length);
  const TypedArray = kinds[kind];
  const width = TypedArray?.BYTES_PER_ELEMENT ?? 1;
  if (length % width !== 0) throw protocolError(`${length} bytes are no multiple of the ${width} of an element`);
  const source = copy || kind === arrayBufferKind || bytes.byteOffset % width !== 0 ? new Uint8Array(bytes) : bytes;
  if (TypedArray) return new TypedArray(source.buffer as ArrayBuffer, source.byteOffset, length / width);
  if (kind === arrayBufferKind) return source.buffer;
  if (kind === dataViewKind) return new DataView(source.buffer, source.byteOffset, length);
  throw protocolError(`a typed array is of the unknown kind ${kind}`);
}

/** Runs `decode` with these bytes as what placeholders refer to. */
export function withOutsideBytes<T>(bytes: readonly Uint8Array[], decode: () => T): T {
  outsideBytes = bytes;
  try {
    return decode();
  } finally {
    outsideBytes = [];
  }
}

/** Collects the typed arrays of one message. */
export class TakeOut {
  readonly buffers: Uint8Array[] = [];
  /** Sum of the buffers' sizes. */
  totalBytes = 0;
  #inlineTotalBytes = 0;
  #budget = maxValues;

  /** The value with placeholders; the same object when there was nothing to replace. */
  replace(value: unknown, depth = 0): unknown {
    this.#budget--;
    switch (typeof value) {
      case "number":
        return value === 0 && Object.is(value, -0) ? negativeZero : value;
      case "object":
        return value === null ? null : this.#replaceObject(value, depth);
      case "function":
      case "symbol":
        throw unsupported(`a ${typeof value}`, "send data only");
      case "bigint":
        if (value > maxBigint || value < -maxBigint)
          throw unsupported("a bigint of thousands of digits", "send its bytes");
        return value;
      default:
        return value;
    }
  }

  #replaceObject(value: object, depth: number): unknown {
    this.#budget -= containerCost;
    // The receiver counts the same way, and would have to close the link.
    if (this.#budget < 0) throw unsupported(`more than ${maxValues} values`, "send numbers as a typed array");
    if (depth > maxDepth) {
      throw unsupported(`an object nested deeper than ${maxDepth} levels`, "remove the cycle or flatten the message");
    }
    if (Array.isArray(value)) return this.#replaceArray(value, depth + 1);
    const prototype = Object.getPrototypeOf(value);
    if (prototype === Object.prototype || prototype === null) return this.#replaceFields(value, depth + 1);
    if (ArrayBuffer.isView(value)) return this.#replaceView(value);
    if (value instanceof Map) {
      const copy = new Map<unknown, unknown>();
      for (const [key, item] of value) copy.set(this.replace(key, depth + 1), this.replace(item, depth + 1));
      return copy;
    }
    if (value instanceof Set) {
      const copy = new Set<unknown>();
      for (const item of value) copy.add(this.replace(item, depth + 1));
      return copy;
    }
    if (value instanceof Date) return value;
    if (value instanceof ArrayBuffer || value instanceof SharedArrayBuffer) {
      return this.#place(arrayBufferKind, new Uint8Array(value));
    }
    if (value instanceof Error) throw unsupported("an Error", "send toErrorRecord(error)");
    if (value instanceof Promise) throw unsupported("a Promise", "await it first");
    if (!plainEnough(value)) throw unsupported(`a ${value.constructor?.name ?? "special object"}`, "send data only");
    const lost = lostMethod(prototype);
    if (lost !== undefined)
      throw unsupported(
        `an instance of '${lost.of}' with its method '${lost.method}'`,
        "send its fields as a plain object, as { ...it } has them, and make the instance where it arrives",
      );
    return this.#replaceFields({ ...value }, depth + 1);
  }

  #replaceArray(value: readonly unknown[], depth: number): unknown {
    let copy: unknown[] | undefined;
    if (value.length > this.#budget)
      throw unsupported(`more than ${maxValues} values`, "send numbers as a typed array");
    for (let index = 0; index < value.length; index++) {
      const item = value[index];
      const replaced = this.replace(item, depth);
      if (replaced !== item) {
        copy ??= value.slice();
        copy[index] = replaced;
      }
    }
    return copy ?? value;
  }

  #replaceFields(value: object, depth: number): unknown {
    const fields = value as Record<string, unknown>;
    let copy: Record<string, unknown> | undefined;
    for (const key in fields) {
      this.#budget--;
      if (key === "__proto__") throw unsupported("the key '__proto__'", "rename it");
      const item = fields[key];
      const replaced = this.replace(item, depth);
      if (replaced !== item) {
        copy ??= { ...fields };
        copy[key] = replaced;
      }
    }
    return copy ?? value;
  }

  #replaceView(view: View): unknown {
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    if (Buffer.isBuffer(view)) return this.#place(bufferKind, bytes);
    const kind = view instanceof DataView ? dataViewKind : kindOfName.get(typedArrayTag.call(view));
    if (kind === undefined) throw unsupported(`a ${view.constructor.name}`, "convert it to a Float32Array");
    return this.#place(kind, bytes);
  }

  #place(kind: number, bytes: Uint8Array): Outside | Inside {
    const { length } = bytes;
    const full = this.buffers.length >= maxBuffers;
    if (length <= inlineBytes && (full || this.#inlineTotalBytes + length <= maxInlineTotalBytes)) {
      this.#inlineTotalBytes += length;
      return new Inside(kind, bytes);
    }
    if (full) throw unsupported(`more than ${maxBuffers} large typed arrays`, "join them, or send several messages");
    this.totalBytes += length;
    return new Outside(kind, this.buffers.push(bytes) - 1);
  }
}

/** Instances of a class that is fields alone travel as these; built-ins with hidden state cannot. */
function plainEnough(value: object): boolean {
  return Object.prototype.toString.call(value) === "[object Object]" && !(value instanceof WeakRef);
}

const methods = new WeakMap<object, { readonly of: string; readonly method: string } | null>();

/** What would be missing where an instance arrives, a getter or a setter too; looked for once a class. */
function lostMethod(prototype: object): { readonly of: string; readonly method: string } | undefined {
  let known = methods.get(prototype);
  if (known === undefined) {
    known = null;
    for (let each = prototype; each && each !== Object.prototype; each = Object.getPrototypeOf(each)) {
      const method = Object.getOwnPropertyNames(each).find((name) => name !== "constructor");
      if (method === undefined) continue;
      known = { of: prototype.constructor?.name ?? "a class", method };
      break;
    }
    methods.set(prototype, known);
  }
  return known ?? undefined;
}

function unsupported(what: string, remedy: string): TreadleError {
  return new TreadleError(
    "link.unsupported-value",
    `a message holds ${what}, which cannot leave its process; ${remedy}`,
    { details: { what, remedy } },
  );
}

/** The same refusal, with where the value stands in the message; looked for only once a message has been refused. */
export function locateUnsupported(message: unknown, error: unknown): unknown {
  if (!(error instanceof TreadleError) || error.code !== "link.unsupported-value") return error;
  const { what, remedy } = error.details;
  const path: string[] = [];
  for (let value = message; path.length < maxDepth; ) {
    const child = childrenOf(value).find(([, item]) => refusal(item) === what);
    if (child === undefined) break;
    path.push(child[0]);
    value = child[1];
  }
  if (path.length === 0) return error;
  const at = path.join(".");
  const text = `a message holds ${what} in '${at}', which cannot leave its process; ${remedy}`;
  return new TreadleError("link.unsupported-value", text, { details: { what, remedy, path: at } });
}

function childrenOf(value: unknown): [string, unknown][] {
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return [];
  if (value instanceof Map) return [...value].map(([key, item]) => [String(key), item]);
  if (value instanceof Set) return [...value].map((item, index) => [String(index), item]);
  return Object.entries(value);
}

function refusal(value: unknown): unknown {
  try {
    new TakeOut().replace(value);
    return undefined;
  } catch (error) {
    return error instanceof TreadleError ? error.details.what : undefined;
  }
}
