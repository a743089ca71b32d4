import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { decodeItems, type ItemBlock, ItemEncoder } from "../src/index.ts";

const scalar = fc.oneof(
  fc.integer(),
  fc.double({ noNaN: true }),
  fc.string(),
  fc.boolean(),
  fc.constant(null),
  fc.date({ noInvalidDate: true }),
  fc.bigInt({ min: -(2n ** 80n), max: 2n ** 80n }),
  fc.uint8Array({ maxLength: 20 }),
  fc.float32Array({ maxLength: 2000, noNaN: true }),
);
const key = fc.string({ maxLength: 6 }).filter((name) => name !== "__proto__");
const value = fc.letrec((tie) => ({
  any: fc.oneof(
    { depthSize: "small", withCrossShrink: true },
    scalar,
    fc.array(tie("any"), { maxLength: 4 }),
    fc.dictionary(key, tie("any"), { maxKeys: 5, noNullPrototype: true }),
  ),
})).any;
const record = fc.record({ id: fc.integer(), reward: fc.double({ noNaN: true }), more: value });

/** The block as another process gets it: bytes of its own, shapes decoded anew. */
function travel({ data, lengths, shapes }: ItemBlock): ItemBlock {
  return { data: data.slice(), lengths: lengths.slice(), ...(shapes ? { shapes: structuredClone(shapes) } : {}) };
}

function cut(block: ItemBlock, from: number, to: number): ItemBlock {
  const before = block.lengths.subarray(0, from).reduce((sum, length) => sum + length, 0);
  const lengths = block.lengths.slice(from, to);
  const sizeBytes = lengths.reduce((sum, length) => sum + length, 0);
  return { ...block, lengths, data: block.data.slice(before, before + sizeBytes) };
}

describe("blocks of items", () => {
  it("come back as they were, one encoder after many blocks of any shape", () => {
    const encoder = new ItemEncoder();
    fc.assert(
      fc.property(fc.array(fc.oneof(record, value), { maxLength: 40 }), (values) => {
        expect(decodeItems(travel(encoder.encode(values)))).toEqual(values);
      }),
      { numRuns: 150 },
    );
  });

  it("can be cut between any two items, and each part decodes alone", () => {
    fc.assert(
      fc.property(fc.array(record, { minLength: 1, maxLength: 20 }), fc.nat(), fc.nat(), (values, a, b) => {
        const [from, to] = [a % (values.length + 1), b % (values.length + 1)].toSorted((x, y) => x - y) as [
          number,
          number,
        ];
        const block = new ItemEncoder().encode(values);
        expect(decodeItems(travel(cut(block, from, to)))).toEqual(values.slice(from, to));
      }),
      { numRuns: 100 },
    );
  });

  it("keep dictionaries of ever new keys apart, without remembering them all", () => {
    const encoder = new ItemEncoder();
    let shapesBytes = 0;
    for (let round = 0; round < 40; round++) {
      const values = Array.from({ length: 10 }, (_, i) =>
        Object.fromEntries(Array.from({ length: 30 }, (_, k) => [`key-${round}-${i}-${k}`, k])),
      );
      const block = encoder.encode(values);
      shapesBytes = Math.max(shapesBytes, JSON.stringify(block.shapes).length);
      expect(decodeItems(travel(block))).toEqual(values);
    }
    expect(shapesBytes).toBeLessThan(32 * 30 * 20);
  });

  it("name each field once a block", () => {
    const values = Array.from({ length: 100 }, (_, id) => ({ id, aLongNameOfAField: 0.5 }));
    const { data, shapes } = new ItemEncoder().encode(values);
    expect(shapes).toEqual([["id", "aLongNameOfAField"]]);
    expect(data.byteLength).toBeLessThan(100 * 20);
  });

  it("are refused with 'link.protocol' when their bytes, sizes or shapes are not what an encoder writes", () => {
    const whole = travel(
      new ItemEncoder().encode([
        { id: 1, text: "abc" },
        { id: 2, text: "def" },
      ]),
    );
    const refused = (block: ItemBlock) => {
      try {
        decodeItems(block);
      } catch (error) {
        expect(error).toBeInstanceOf(TreadleError);
        expect((error as TreadleError).code).toBe("link.protocol");
        return;
      }
      expect.unreachable("the block was accepted");
    };
    refused({ ...whole, lengths: Uint32Array.of(3) });
    refused({ ...whole, lengths: Uint32Array.of(0, whole.data.byteLength) });
    refused({ ...whole, shapes: [] });
    refused({ ...whole, shapes: Array.from({ length: 40 }, (_, i) => [`a${i}`]) });
    refused({ data: whole.data, lengths: whole.lengths });
    expect(decodeItems(whole)).toEqual([
      { id: 1, text: "abc" },
      { id: 2, text: "def" },
    ]);
  });

  it("survive any change of a byte: a value or 'link.protocol', and the next block is read as ever", () => {
    const values = Array.from({ length: 5 }, (_, id) => ({ id, text: `t${id}`, list: [1, 2, { id }] }));
    const whole = travel(new ItemEncoder().encode(values));
    fc.assert(
      fc.property(fc.nat(whole.data.byteLength - 1), fc.nat(255), (at, byte) => {
        const broken = travel(whole);
        broken.data[at] = byte;
        try {
          decodeItems(broken);
        } catch (error) {
          expect((error as TreadleError).code).toBe("link.protocol");
        }
        expect(decodeItems(whole)).toEqual(values);
      }),
      { numRuns: 500 },
    );
  });
});
