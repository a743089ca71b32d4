/** How garbage is made: of nothing, of a valid message with a few changes, and by hand against what decoders trust. */
import fc from "fast-check";

export type Garbage<Input> = {
  readonly random: fc.Arbitrary<Input>;
  readonly hostile: readonly [string, () => Input][];
};

/** Sets, removes, doubles and cuts bytes. */
export function damagedBytes(valid: fc.Arbitrary<Uint8Array>): fc.Arbitrary<Uint8Array> {
  const change = fc.record({ at: fc.nat(), what: fc.constantFrom("set", "cut", "double"), byte: fc.nat(255) });
  return fc.tuple(valid, fc.array(change, { maxLength: 4 })).map(([bytes, changes]) => {
    let damaged = Uint8Array.from(bytes);
    for (const { at, what, byte } of changes) {
      const position = damaged.length === 0 ? 0 : at % damaged.length;
      if (what === "set") damaged[position] = byte;
      else if (what === "cut") damaged = damaged.slice(0, position);
      else damaged = Uint8Array.from([...damaged.subarray(0, position), ...damaged.subarray(position >> 1)]);
    }
    return damaged;
  });
}

export const damagedText = (valid: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  damagedBytes(valid.map((text) => Buffer.from(text))).map((bytes) => Buffer.from(bytes).toString("utf8"));

const odd: readonly unknown[] = [
  ...[null, undefined, true, "", "\0", "__proto__", "\ud800", -1, -0, 0.5, 1e308, Number.MAX_SAFE_INTEGER + 2],
  ...[Number.NaN, Number.POSITIVE_INFINITY, 10n, [], {}, [[]], new Map([[{}, 1]]), new Date(Number.NaN)],
  ...[new Uint8Array(3), new Float64Array([Number.NaN, -1]), new Uint32Array([4_294_967_295]), Object.create(null)],
  JSON.parse('{"__proto__": {"polluted": true}, "constructor": 1}'),
];

/** Puts something odd in the place of parts of a value. */
export function damagedValue(valid: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  const change = fc.tuple(fc.array(fc.nat(7), { maxLength: 6 }), fc.constantFrom(...odd));
  return fc
    .tuple(valid, fc.array(change, { maxLength: 3 }))
    .map(([value, changes]) => changes.reduce((sum, [path, part]) => replaced(sum, path, part), value));
}

function replaced(value: unknown, path: readonly number[], part: unknown): unknown {
  const [first, ...rest] = path;
  if (first === undefined || typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return part;
  if (Array.isArray(value)) {
    if (value.length === 0) return [part];
    return value.map((each, i) => (i === first % value.length ? replaced(each, rest, part) : each));
  }
  const keys = Object.keys(value);
  if (keys.length === 0) return { odd: part };
  const key = keys[first % keys.length] as string;
  return { ...value, [key]: replaced((value as Record<string, unknown>)[key], rest, part) };
}

const repeated = (text: string, count: number) => text.repeat(count);
const nested = (levels: number, around: (inner: unknown) => unknown): unknown => {
  let value: unknown = {};
  for (let level = 0; level < levels; level++) value = around(value);
  return value;
};

export const anyBytes: Garbage<Uint8Array> = {
  random: fc.uint8Array({ maxLength: 300 }),
  hostile: [
    ["no bytes", () => new Uint8Array(0)],
    ["a mebibyte of zeros", () => new Uint8Array(2 ** 20)],
    ["a mebibyte of ones", () => new Uint8Array(2 ** 20).fill(0xff)],
    ["endless nesting of arrays", () => new Uint8Array(2 ** 20).fill(0x91)],
    ["endless nesting of maps", () => new Uint8Array(2 ** 20).fill(0x81)],
    ["four thousand million values", () => Uint8Array.of(0xdd, 0xff, 0xff, 0xff, 0xff)],
    ["lengths of four thousand million", () => new Uint8Array(64).fill(0xff).fill(0, 0, 4)],
    ["a page of a web server", () => Buffer.from("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")],
  ],
};

export const anyText: Garbage<string> = {
  random: fc.oneof(fc.string({ unit: "binary", maxLength: 200 }), fc.json({ maxDepth: 4 })),
  hostile: [
    ["no text", () => ""],
    ["zero bytes", () => repeated("\0", 1000)],
    ["endless arrays", () => repeated("[", 100_000)],
    ["nested arrays", () => repeated("[", 20_000) + repeated("]", 20_000)],
    ["endless objects", () => repeated('{"a":', 100_000)],
    ["nested objects", () => `${repeated('{"a":', 20_000)}1${repeated("}", 20_000)}`],
    ["endless causes", () => `${repeated('{"code":"a","message":"b","cause":', 20_000)}1${repeated("}", 20_000)}`],
    ["a long string", () => JSON.stringify(repeated("x", 2 ** 19))],
    ["a long line", () => repeated("x", 2 ** 19)],
    ["a number without end", () => repeated("9", 100_000)],
    ["many keys", () => JSON.stringify(Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [`k${i}`, i])))],
    ["many values", () => JSON.stringify(new Array(50_000).fill(0))],
    ["a prototype", () => '{"__proto__": {"polluted": true}}'],
    ["many lines", () => repeated("{}\n", 20_000)],
    ["carriage returns", () => repeated("\r\n", 100_000)],
    ["a byte order mark", () => "\ufeff{}"],
  ],
};

export const anyValue: Garbage<unknown> = {
  random: fc.oneof(fc.constantFrom(...odd), fc.jsonValue({ maxDepth: 3 }), fc.object({ maxDepth: 3 })),
  hostile: [
    ["nested objects", () => nested(8_000, (inner) => ({ cause: inner, body: inner, error: inner }))],
    ["nested arrays", () => nested(8_000, (inner) => [inner])],
    [
      "endless causes",
      () =>
        nested(8_000, (inner) => ({ code: "call.failed", message: "m", report: inner, error: inner, cause: inner })),
    ],
    ["many values", () => new Array(20_000).fill(0)],
    ["many keys", () => Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [`k${i}`, i]))],
    ["a long string", () => repeated("x", 2 ** 20)],
    ["a list with holes", () => new Array(20_000)],
  ],
};
