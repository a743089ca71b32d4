import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { buffersOf, readMessageHead } from "../src/codec/message-head.ts";
import { Decoder, decodeItem, Encoder, encodeItem } from "../src/index.ts";
import { type FrameHandler, FrameReader, frameKind, headBytes, writeHead } from "../src/link/frame.ts";
import { Handshake } from "../src/link/handshake.ts";

const typedArray = fc.oneof(
  fc.float32Array(),
  fc.float64Array(),
  fc.int8Array(),
  fc.uint8ClampedArray(),
  fc.uint16Array(),
  fc.int32Array(),
  fc.bigInt64Array(),
  fc.uint8Array().map((bytes) => Buffer.from(bytes)),
  fc.uint8Array().map((bytes) => new Uint8Array(bytes).buffer),
  fc.integer({ min: 1020, max: 1030 }).map((length) => new Float32Array(length).fill(length)),
  fc.integer({ min: 4000, max: 4100 }).map((length) => new Uint8Array(length).fill(7)),
);
const key = fc.string({ maxLength: 6 }).filter((text) => text !== "__proto__");
const value = fc.letrec((tie) => ({
  leaf: fc.oneof(
    fc.string({ unit: "binary" }),
    fc.string({ minLength: 30, maxLength: 300 }),
    fc.double(),
    fc.integer(),
    fc.maxSafeInteger(),
    fc.bigInt({ min: -(2n ** 90n), max: 2n ** 90n }),
    fc.boolean(),
    fc.constantFrom(null, undefined, -0),
    fc.date({ noInvalidDate: false }),
    typedArray,
  ),
  node: fc.oneof(
    { depthSize: "small", withCrossShrink: true },
    tie("leaf"),
    fc.array(tie("node"), { maxLength: 6 }),
    fc.dictionary(key, tie("node"), { maxKeys: 5, noNullPrototype: true }),
    fc.array(fc.tuple(tie("leaf"), tie("node")), { maxLength: 4 }).map((entries) => new Map(entries)),
    fc.array(tie("leaf"), { maxLength: 4 }).map((items) => new Set(items)),
  ),
})).node;

/** Runs `decode` and fails unless it returns or throws a protocol error. */
function onlyProtocolErrors(decode: () => unknown): void {
  try {
    decode();
  } catch (error) {
    if (error instanceof TreadleError && error.code === "link.protocol") return;
    throw error;
  }
}

describe("codec", () => {
  it("returns every value as it was, through one sequence of many shapes", () => {
    const encoder = new Encoder();
    const decoder = new Decoder();
    fc.assert(
      fc.property(value, (original) => {
        const { header, buffers, reset } = encoder.encode(original, 8);
        const copies = buffers.map((buffer) => new Uint8Array(buffer));
        expect(decoder.decode(header, 8, header.length, copies, reset)).toStrictEqual(original);
      }),
      { numRuns: 600 },
    );
  });

  it("returns items as they were", () => {
    fc.assert(
      fc.property(value, (original) => {
        expect(decodeItem(encodeItem(original))).toStrictEqual(original);
      }),
      { numRuns: 300 },
    );
  });

  it("does not change the caller's value", () => {
    const original = { list: [1, -0, new Float32Array(5000)], map: new Map([["k", new Uint8Array(3)]]) };
    const copy = structuredClone(original);
    new Encoder().encode(original);
    expect(original).toStrictEqual(copy);
  });

  it.each([
    [
      "a plain array of too many numbers",
      () => Object.assign([], { length: 33 * 1024 * 1024 }),
      /more than \d+ values.*typed array/,
    ],
    ["too many empty objects", () => new Array(4 * 1024 * 1024).fill({}), /more than \d+ values/],
    ["a gigantic bigint", () => [1n << 9000n], /bigint of thousands of digits/],
  ])("refuses %s at the sender, because the receiver would", (_what, make, message) => {
    expect(() => new Encoder().encode(make())).toThrow(message);
  });

  it("keeps more shapes apart than it remembers", () => {
    const encoder = new Encoder();
    const decoder = new Decoder();
    for (let round = 0; round < 3; round++) {
      for (let shape = 0; shape < 200; shape++) {
        const original = { [`field${shape}`]: round, common: [{ [`inner${shape % 70}`]: shape }] };
        const { header, reset } = encoder.encode(original);
        expect(decoder.decode(header, 0, header.length, [], reset)).toEqual(original);
      }
    }
  });
});

describe("decoders", () => {
  it("throw nothing but link.protocol on random bytes", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        onlyProtocolErrors(() => new Decoder().decode(bytes, 0, bytes.length, [new Uint8Array(8)]));
        onlyProtocolErrors(() => decodeItem(bytes));
        onlyProtocolErrors(() => readMessageHead(bytes, 0, bytes.length, 1000));
      }),
      { numRuns: 1500 },
    );
  });

  it("throw nothing but link.protocol on damaged messages", () => {
    const damage = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(value, damage, fc.nat({ max: 5 }), (original, changes, cut) => {
        const item = encodeItem(original);
        const { header, buffers } = new Encoder().encode(original);
        const bytes = new Uint8Array(header);
        for (const [at, byte] of changes) {
          item[at % item.length] = byte;
          bytes[at % bytes.length] = byte;
        }
        onlyProtocolErrors(() => decodeItem(item.subarray(0, item.length - cut)));
        onlyProtocolErrors(() => new Decoder().decode(bytes, 0, Math.max(0, bytes.length - cut), buffers));
      }),
      { numRuns: 700 },
    );
  });

  it.each([
    ["an array of four thousand million", [0xdd, 0xff, 0xff, 0xff, 0xff]],
    ["nested arrays that each announce the rest", Array.from({ length: 120 }, () => [0xdc, 0xff, 0xff]).flat()],
    ["a map of four thousand million", [0xdf, 0xff, 0xff, 0xff, 0xff]],
    ["a string longer than the message", [0xdb, 0x7f, 0xff, 0xff, 0xff, 0x41]],
    ["endless nesting", new Array(100_000).fill(0x91)],
    ["an unknown record", [0x41]],
    ["a regular expression", [0xd4, 0x78, 0x00, 0x92, 0xa1, 0x61, 0xa0]],
    ["an error by its constructor's name", [0xd4, 0x65, 0x00, 0x92, 0xa4, 0x65, 0x76, 0x61, 0x6c, 0xa1, 0x31]],
    ["bundled strings with an offset", [0xd6, 0x62, 0xff, 0xff, 0xff, 0xff, 0xc0]],
    ["a typed array that was not sent along", [0xc7, 0x05, 0x57, 0x07, 0x09, 0, 0, 0]],
    ["two values", [0x01, 0x02]],
    ["nothing", []],
  ])("refuse %s without building it", (_name, bytes) => {
    const before = process.memoryUsage().rss;
    const array = Uint8Array.from(bytes);
    expect(() => new Decoder().decode(array, 0, array.length)).toThrow(
      expect.objectContaining({ code: "link.protocol" }),
    );
    expect(process.memoryUsage().rss - before).toBeLessThan(64 * 1024 * 1024);
  });

  it("refuses millions of empty containers, which would cost a hundred times their bytes", () => {
    const bytes = new Uint8Array(8 * 1024 * 1024).fill(0x80);
    bytes.set([0xdd, 0, 0x7f, 0xff, 0xfb]);
    expect(() => new Decoder().decode(bytes, 0, bytes.length)).toThrow(/more than \d+ values/);
  });

  it("never let a key change a prototype", () => {
    const { header } = new Encoder().encode({ ninechars: { polluted: true } });
    const bytes = Buffer.from(header);
    bytes.write("__proto__", bytes.indexOf("ninechars"));
    const decoded = new Decoder().decode(bytes, 0, bytes.length) as { polluted?: boolean };
    expect(decoded.polluted).toBeUndefined();
    expect(Object.getPrototypeOf(decoded)).toBe(Object.prototype);
  });
});

describe("message head", () => {
  it("views exactly the announced buffers", () => {
    const area = new ArrayBuffer(300);
    expect(buffersOf(area, 0, [3, 0, 65]).map((buffer) => [buffer.byteOffset, buffer.length])).toEqual([
      [0, 3],
      [64, 0],
      [64, 65],
    ]);
  });
});

type Seen = { kind: number; body: number[] };

function recorder(): FrameHandler & { seen: Seen[] } {
  const seen: Seen[] = [];
  const target = new Uint8Array(1024 * 1024);
  return {
    seen,
    frame: (kind, _flags, bytes, start, end) => seen.push({ kind, body: [...bytes.subarray(start, end)] }),
    chunkStart: () => seen.push({ kind: frameKind.chunk, body: [] }),
    chunkBytes: (bytes) => seen.at(-1)!.body.push(...bytes),
    chunkTarget: () => target,
  };
}

describe("frame reader", () => {
  const frames = fc.array(
    fc.tuple(
      fc.constantFrom(frameKind.plain, frameKind.attached, frameKind.chunk),
      fc.uint8Array({ minLength: 1, maxLength: 300 }),
    ),
    { minLength: 1, maxLength: 8 },
  );

  it("finds the same frames wherever the stream is cut", () => {
    fc.assert(
      fc.property(frames, fc.infiniteStream(fc.integer({ min: 1, max: 120 })), (sent, cuts) => {
        const stream = Buffer.concat(
          sent.flatMap(([kind, body]) => {
            const head = Buffer.alloc(headBytes);
            writeHead(head, body.length, kind, 0);
            return [head, body];
          }),
        );
        const handler = recorder();
        const reader = new FrameReader(handler, 1000);
        for (let at = 0; at < stream.length; ) {
          const size = cuts.next().value as number;
          reader.push(stream.subarray(at, at + size));
          at += size;
        }
        expect(handler.seen).toEqual(sent.map(([kind, body]) => ({ kind, body: [...body] })));
      }),
      { numRuns: 80 },
    );
  });

  it("throws nothing but link.protocol on random bytes, and keeps no more than it was given", () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 60 }), { maxLength: 6 }), (pieces) => {
        const reader = new FrameReader(recorder(), 64 * 1024 * 1024);
        onlyProtocolErrors(() => {
          for (const piece of pieces) reader.push(piece);
        });
      }),
      { numRuns: 1000 },
    );
  });

  it("refuses a frame above the limit from its head alone", () => {
    const head = Buffer.alloc(headBytes);
    writeHead(head, 1001, frameKind.plain, 0);
    expect(() => new FrameReader(recorder(), 1000).push(head)).toThrow(/announces 1001 bytes, and 1000 are allowed/);
  });
});

describe("handshake", () => {
  it("refuses anything that is no step, and never throws", () => {
    const self = { name: "a", runId: "r", memory: "", segmentPrefix: "" };
    fc.assert(
      fc.property(
        fc.oneof(
          fc.uint8Array(),
          fc.json().map((text) => Buffer.from(text)),
        ),
        (bytes) => {
          for (const role of ["dialler", "acceptor"] as const) {
            expect(new Handshake(role, self, "token token token", undefined).receive(bytes).next).toBe("refuse");
          }
        },
      ),
      { numRuns: 300 },
    );
  });
});
