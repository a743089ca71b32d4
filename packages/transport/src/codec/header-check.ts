/**
 * Walks an encoded value without building anything, so that hostile or broken bytes are refused before they cost memory.
 *
 * The decoder behind it trusts counts, recurses, and knows extensions that we never write; after this check every count
 * is backed by bytes, depth and number of values are bounded, and only the extensions of our own encoder remain.
 * Cost: one pass, a few nanoseconds a value.
 */

import { protocolError } from "../protocol-error.ts";
import { containerCost, extensionType, maxBigintBytes, maxDepth, maxValues } from "./typed-arrays.ts";

/** Extensions beside placeholders: undefined, big integers, Set, Date. */
const undefinedType = 0x00;
const bigintType = 0x42;
const setType = 0x73;
const recordType = 0x72;
const dateType = 0xff;

export class HeaderCheck {
  /** Fields of each record shape by its id, 0x40..0x7f; -1 where none is defined. */
  readonly #fields = new Int32Array(0x40).fill(-1);
  #bytes: Uint8Array = new Uint8Array(0);
  #position = 0;
  #end = 0;
  #budget = 0;
  #firstOwnId = 0x40;

  /** Throws `link.protocol` unless `bytes[start, end)` is one well-formed value. Shapes stay known for later values. */
  run(bytes: Uint8Array, start: number, end: number): void {
    this.#bytes = bytes;
    this.#position = start;
    this.#end = end;
    this.#budget = maxValues;
    this.#value(0);
    if (this.#position !== end) throw protocolError(`${end - this.#position} bytes follow the value`);
  }

  forgetShapes(): void {
    this.#fields.fill(-1);
    this.#firstOwnId = 0x40;
  }

  /** These shapes have the first ids, and what is read may define none below `firstOwnId`. */
  knowShapes(numKeys: readonly number[], firstOwnId: number): void {
    this.#fields.fill(-1);
    this.#fields.set(numKeys);
    this.#firstOwnId = firstOwnId;
  }

  #value(depth: number) {
    if (--this.#budget < 0) throw protocolError(`a message holds more than ${maxValues} values`);
    if (depth > maxDepth + 4) throw protocolError(`a message is nested deeper than ${maxDepth} levels`);
    const token = this.#number(1);
    if (token < 0x40 || token >= 0xe0) return;
    if (token < 0x80) {
      const fields = this.#fields[token - 0x40]!;
      if (fields < 0) throw protocolError(`record shape ${token} was never defined`);
      return this.#values(fields, depth);
    }
    if (token < 0x90) return this.#values((token - 0x80) * 2, depth);
    if (token < 0xa0) return this.#values(token - 0x90, depth);
    if (token < 0xc0) return this.#skip(token - 0xa0);
    switch (token) {
      case 0xc0:
      case 0xc2:
      case 0xc3:
        return;
      case 0xc7:
        return this.#extension(this.#number(1), depth);
      case 0xc8:
        return this.#extension(this.#number(2), depth);
      case 0xc9:
        return this.#extension(this.#number(4), depth);
      case 0xcc:
      case 0xd0:
        return this.#skip(1);
      case 0xcd:
      case 0xd1:
        return this.#skip(2);
      case 0xca:
      case 0xce:
      case 0xd2:
        return this.#skip(4);
      case 0xcb:
      case 0xcf:
      case 0xd3:
        return this.#skip(8);
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return this.#extension(1 << (token - 0xd4), depth);
      case 0xd9:
        return this.#skip(this.#number(1));
      case 0xda:
        return this.#skip(this.#number(2));
      case 0xdb:
        return this.#skip(this.#number(4));
      case 0xdc:
        return this.#values(this.#number(2), depth);
      case 0xdd:
        return this.#values(this.#number(4), depth);
      case 0xde:
        return this.#values(this.#number(2) * 2, depth);
      case 0xdf:
        return this.#values(this.#number(4) * 2, depth);
      default:
        throw protocolError(`token 0x${token.toString(16)} is not part of the encoding`);
    }
  }

  #values(count: number, depth: number) {
    if (count > this.#end - this.#position) throw protocolError(`${count} values are announced and fewer bytes follow`);
    this.#budget -= containerCost;
    for (let index = 0; index < count; index++) this.#value(depth + 1);
  }

  #extension(length: number, depth: number) {
    const type = this.#number(1);
    if (length === 1 && type === recordType) return this.#record(depth);
    switch (type) {
      case extensionType.outside:
      case extensionType.inside:
      case extensionType.negativeZero:
        this.#budget -= containerCost;
        return this.#skip(length);
      case undefinedType:
        if (length !== 1) throw protocolError("undefined has a wrong length");
        return this.#skip(1);
      case dateType:
        if (length !== 1 && length !== 4 && length !== 8 && length !== 12)
          throw protocolError("a date has a wrong length");
        return this.#skip(length);
      case bigintType:
        if (length === 0 || length > maxBigintBytes) throw protocolError(`a bigint has ${length} bytes`);
        return this.#skip(length);
      case setType:
        if (length !== 1) throw protocolError("a set has a wrong length");
        this.#skip(1);
        return this.#array(depth);
      default:
        throw protocolError(`extension 0x${type.toString(16)} is not part of the encoding`);
    }
  }

  /** A shape's definition: its id, the array of its keys, then the first value of that shape. */
  #record(depth: number) {
    const id = this.#number(1);
    if (id < this.#firstOwnId || id > 0x7f) throw protocolError(`record id ${id} is out of range`);
    const count = this.#arrayLength();
    if (count > this.#end - this.#position) throw protocolError(`${count} keys are announced and fewer bytes follow`);
    this.#budget -= count;
    for (let index = 0; index < count; index++) this.#string();
    this.#fields[id - 0x40] = count;
    this.#values(count, depth);
  }

  #array(depth: number) {
    this.#values(this.#arrayLength(), depth);
  }

  #arrayLength(): number {
    const token = this.#number(1);
    if (token >= 0x90 && token < 0xa0) return token - 0x90;
    if (token === 0xdc) return this.#number(2);
    if (token === 0xdd) return this.#number(4);
    throw protocolError("an array is missing");
  }

  #string() {
    const token = this.#number(1);
    if (token >= 0xa0 && token < 0xc0) return this.#skip(token - 0xa0);
    if (token === 0xd9) return this.#skip(this.#number(1));
    if (token === 0xda) return this.#skip(this.#number(2));
    throw protocolError("a key is no string");
  }

  /** Reads an unsigned big-endian number of `width` bytes. */
  #number(width: number): number {
    if (width > this.#end - this.#position) throw protocolError("a value is cut off");
    let value = 0;
    for (let index = 0; index < width; index++) value = value * 256 + this.#bytes[this.#position++]!;
    return value;
  }

  #skip(length: number) {
    if (length > this.#end - this.#position) throw protocolError("a value is cut off");
    this.#position += length;
  }
}
