/** A safetensors file is read only where its tensors are as long as their types and shapes say, one after another. */
import { mkdtemp, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readTensorInfos, TensorFile } from "../src/server/safetensors.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-headers-"));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** A file of any header. */
const written = async (header: unknown, data: Uint8Array): Promise<string> => {
  const path = join(folder, "altered.safetensors");
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  await writeFile(path, Buffer.concat([length, text, data]));
  return path;
};
const bytesOfTypes = { BOOL: 1, U8: 1, F8_E4M3: 1, I16: 2, F16: 2, BF16: 2, I32: 4, F32: 4, F64: 8, I64: 8 };
const types = Object.entries(bytesOfTypes);
type Entry = { dtype: string; shape: number[]; data_offsets: [number, number] };
const header = fc
  .array(fc.tuple(fc.constantFrom(...types), fc.array(fc.nat(4), { maxLength: 3 }), fc.nat()), {
    minLength: 1,
    maxLength: 5,
  })
  .map((tensors) => {
    let end = 0;
    const entries = tensors.map(([[dtype, bytes], shape, order], index) => {
      const start = end;
      end += shape.reduce((a, b) => a * b, bytes);
      return { order, entry: [`t.${index}`, { dtype, shape, data_offsets: [start, end] }] as [string, Entry] };
    });
    // Places need not be in the order of names.
    return { entries: entries.toSorted((a, b) => a.order - b.order).map(({ entry }) => entry), end };
  });
const isRead = (path: string) =>
  readTensorInfos(path).then(
    () => true,
    (error: TreadleError) => {
      expect(error.code).toBe("config.invalid");
      return false;
    },
  );

test("a header is read whose tensors are as long as their numbers, one after another; one altered anywhere is refused", async () => {
  await fc.assert(
    fc.asyncProperty(header, fc.nat(), fc.nat(3), fc.integer({ min: 1, max: 40 }), async (drawn, at, what, by) => {
      const { entries, end } = drawn;
      const data = new Uint8Array(end).fill(1);
      expect(await isRead(await written(Object.fromEntries(entries), data))).toBe(true);
      const index = at % entries.length;
      const [name, { dtype, shape, data_offsets }] = entries[index]!;
      const [start, stop] = data_offsets;
      const numBytes = (size: Pick<Entry, "dtype" | "shape">) =>
        size.shape.reduce((a, b) => a * b, bytesOfTypes[size.dtype as keyof typeof bytesOfTypes]);
      const candidates: Entry[] = [
        { dtype, shape, data_offsets: [start + by, stop] },
        { dtype, shape, data_offsets: [start, Math.max(0, stop - by)] },
        { dtype, shape, data_offsets: [start + by, stop + by] },
        { dtype, shape: [...shape, by + 1], data_offsets },
        { dtype, shape: shape.map((each) => each + by), data_offsets },
        ...types.map(([other]) => ({ dtype: other, shape, data_offsets })),
      ];
      const altered = candidates.filter(
        (entry) =>
          numBytes(entry) !== numBytes({ dtype, shape }) ||
          (entry.data_offsets.join() !== data_offsets.join() && (stop > start || entry.data_offsets[0] > end)),
      );
      const entry = altered[what % Math.max(1, altered.length)];
      fc.pre(entry !== undefined);
      const others = entries.map((each, place) => (place === index ? ([name, entry!] as const) : each));
      expect(await isRead(await written(Object.fromEntries(others), data))).toBe(false);
    }),
    { numRuns: 200 },
  );
});

test.each([
  ["no bytes", { a: { dtype: "F32", shape: [4], data_offsets: [0, 0] } }, 0],
  ["the start behind the end", { a: { dtype: "F32", shape: [4], data_offsets: [16, 0] } }, 0],
  ["half as many bytes", { a: { dtype: "F32", shape: [4], data_offsets: [0, 8] } }, 8],
  [
    "no bytes, over another's",
    {
      a: { dtype: "F32", shape: [4], data_offsets: [0, 16] },
      b: { dtype: "F32", shape: [4], data_offsets: [0, 0] },
    },
    16,
  ],
  [
    "another's bytes",
    {
      a: { dtype: "F32", shape: [4], data_offsets: [0, 16] },
      b: { dtype: "F32", shape: [4], data_offsets: [0, 16] },
    },
    16,
  ],
  ["a gap before it", { a: { dtype: "F32", shape: [4], data_offsets: [4, 20] } }, 20],
  [
    "sizes whose product is none",
    { a: { dtype: "F32", shape: [...Array(40).fill(2 ** 40), 0], data_offsets: [0, 0] } },
    0,
  ],
] as const)("a tensor that has %s is refused", async (_, entries, numBytes) => {
  expect(await isRead(await written(entries, new Uint8Array(numBytes)))).toBe(false);
});

test("a file that is cut while it is open is refused", async () => {
  const path = await written({ a: { dtype: "F32", shape: [4], data_offsets: [0, 16] } }, new Uint8Array(16).fill(1));
  const file = await TensorFile.open(path);
  const { size } = await stat(path);
  await truncate(path, size - 4);
  await expect(file.read("a", 0, 4)).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringMatching(/it ends at/),
  });
  expect(await file.read("a", 0, 3)).toHaveLength(3);
  await file.close();
});
