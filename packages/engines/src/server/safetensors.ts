/**
 * Tensors in a file as safetensors lays them out: 8 bytes with the header's length (little-endian), the header as JSON, and
 * the tensors' bytes, without gaps.
 */
import { type FileHandle, open } from "node:fs/promises";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { checksumOf, inHex } from "../checksum.ts";
import { sizeOf } from "../parameters.ts";
import { piecesOf } from "../pieces.ts";

const maxHeaderBytes = 100 * 2 ** 20; // the format's own limit
const size = z.int().nonnegative();
const Entry = z.object({ dtype: z.string(), shape: z.array(size), data_offsets: z.tuple([size, size]) });
const metadataKey = "__metadata__";
const Header = z.record(z.string(), z.unknown()).transform((entries, context) => {
  const tensors = new Map<string, z.infer<typeof Entry>>();
  for (const [name, entry] of Object.entries(entries)) {
    if (name === metadataKey) continue;
    const parsed = Entry.safeParse(entry);
    if (!parsed.success) context.addIssue({ code: "custom", message: `'${name}' has no type, shape and place` });
    else tensors.set(name, parsed.data);
  }
  return tensors;
});

export type TensorInfo = { readonly dtype: string; readonly shape: readonly number[] };
export type Tensor = { readonly name: string; readonly shape: readonly number[]; readonly data: Float32Array };

/** Numbers are written as one of these. */
export type FloatType = "F32" | "BF16";

/** Bits of a number, of the types that the format has. */
const bitsOf: Readonly<Record<string, number>> = {
  ...{ F4: 4, F6_E2M3: 6, F6_E3M2: 6, BOOL: 8, U8: 8, I8: 8, F8_E5M2: 8, F8_E4M3: 8, F8_E8M0: 8 },
  ...{ I16: 16, U16: 16, F16: 16, BF16: 16, I32: 32, U32: 32, F32: 32, I64: 64, U64: 64, F64: 64, C64: 64 },
};

/** What is wrong, unless each tensor is as long as its type and shape say and they follow one another to the end, as the format has it. */
function misplaced(tensors: z.infer<typeof Header>, numBytes: number): string | undefined {
  const placed = [...tensors].map(([name, entry]) => ({ name, ...entry }));
  placed.sort(({ data_offsets: [a, b] }, { data_offsets: [c, d] }) => a - c || b - d);
  let end = 0;
  for (const { name, dtype, shape, data_offsets } of placed) {
    const [start, stop] = data_offsets;
    if (start !== end) return `'${name}' begins at '${start}' where what is before it ends at '${end}'`;
    const length = ((bitsOf[dtype] ?? Number.NaN) * sizeOf({ shape })) / 8;
    // Of a type that is newer than this list, whoever reads the tensor refuses it.
    if (stop < start || (dtype in bitsOf && stop - start !== length))
      return `'${name}' has '${stop - start}' bytes where '${shape.join("x")}' of type '${dtype}' has '${length}'`;
    end = stop;
  }
  return end === numBytes ? undefined : `it has '${numBytes}' bytes of tensors where its header tells of '${end}'`;
}

type Header = {
  readonly tensors: z.infer<typeof Header>;
  /** whatever it has of it */
  readonly metadata: unknown;
  readonly dataStart: number;
};

function refuseFile(path: string, what: string): never {
  throw new TreadleError("config.invalid", `'${path}' is no whole safetensors file: ${what}; copy it again`);
}

async function readHeader(file: FileHandle, path: string): Promise<Header> {
  const refuse = (what: string): never => refuseFile(path, what);
  const { size: sizeBytes } = await file.stat();
  const length = Buffer.alloc(8);
  const { bytesRead } = await file.read(length, 0, 8, 0);
  const headerBytes = bytesRead === 8 ? Number(length.readBigUInt64LE()) : Number.POSITIVE_INFINITY;
  if (headerBytes > maxHeaderBytes || 8 + headerBytes > sizeBytes)
    refuse(`it ends in its header, at '${sizeBytes}' bytes`);
  const text = Buffer.alloc(headerBytes);
  await fill(file, text, 8, path);
  let json: unknown;
  try {
    json = JSON.parse(text.toString("utf8"));
  } catch {
    refuse("its header is not JSON");
  }
  const parsed = Header.safeParse(json);
  if (!parsed.success) return refuse(z.prettifyError(parsed.error));
  const dataStart = 8 + headerBytes;
  const problem = misplaced(parsed.data, sizeBytes - dataStart);
  if (problem) refuse(problem);
  return { tensors: parsed.data, metadata: (json as Record<string, unknown>)[metadataKey], dataStart };
}

/** Throws `config.invalid` for a file that is cut short or is none. */
export async function readTensorInfos(path: string): Promise<Map<string, TensorInfo>> {
  await using file = await open(path);
  const { tensors } = await readHeader(file, path);
  return new Map([...tensors].map(([name, { dtype, shape }]) => [name, { dtype, shape }]));
}

/**
 * Every tensor as float32; those of other types than F32 and BF16 are refused as `readTensorInfos` refuses files. `check` sees
 * each tensor's bytes as they are in the file.
 */
export async function readTensors(
  path: string,
  check: (name: string, bytes: Uint8Array) => void = () => {},
): Promise<Tensor[]> {
  await using file = await open(path);
  const { tensors, dataStart } = await readHeader(file, path);
  const read: Tensor[] = [];
  for (const [name, { dtype, shape, data_offsets }] of tensors) {
    const bytes = new Uint8Array(data_offsets[1] - data_offsets[0]);
    await fill(file, bytes, dataStart + data_offsets[0], path);
    check(name, bytes);
    read.push({ name, shape, data: fromType(floatTypeOf(dtype, name, path), bytes) });
  }
  return read;
}

/** Checksums of tensors, by name. */
export type Checksums = ReadonlyMap<string, number>;

/**
 * Reads every tensor, in pieces, and nothing of it stays in memory. Throws `config.invalid` for a file that is cut short or is none, and
 * `engine.weights-mismatch` by the name of what has another checksum, is missing, or is too much.
 */
export async function verifyTensors(path: string, expected: Checksums): Promise<void> {
  const refuse = (what: string): never => {
    throw new TreadleError("engine.weights-mismatch", `'${path}' is not as it was written: ${what}`);
  };
  await using file = await open(path);
  const { tensors, dataStart } = await readHeader(file, path);
  for (const name of expected.keys()) if (!tensors.has(name)) refuse(`it lacks '${name}'`);
  const buffer = new Uint8Array(verifiedAtOnce);
  for (const [name, { data_offsets }] of tensors) {
    const published = expected.get(name);
    if (published === undefined) return refuse(`nobody wrote '${name}'`);
    let checksum = 0;
    const end = dataStart + data_offsets[1];
    for (let at = dataStart + data_offsets[0]; at < end; ) {
      const { bytesRead } = await file.read(buffer, 0, Math.min(buffer.length, end - at), at);
      if (bytesRead === 0) refuse(`it ends in '${name}'`);
      checksum = checksumOf(buffer.subarray(0, bytesRead), checksum);
      at += bytesRead;
    }
    if (checksum !== published)
      refuse(`'${name}' has checksum '${inHex(checksum)}' where '${inHex(published)}' was written`);
  }
}

const verifiedAtOnce = 4 * 2 ** 20;

/** A tensor that is larger than what should be in memory at once: its numbers, in pieces of any size. */
export type TensorInPieces = TensorInfo & {
  readonly name: string;
  readonly dtype: FloatType;
  readonly pieces: Iterable<Float32Array> | AsyncIterable<Float32Array>;
};

/** Writes one tensor after another, and returns when the disk has them, with what it wrote of each. */
export async function writeTensors(
  path: string,
  tensors: readonly (TensorInPieces | (Tensor & { readonly dtype: FloatType }))[],
): Promise<Checksums> {
  const head = headOf(
    tensors.map(({ name, shape, dtype }) => ({ name, dtype, shape, sizeBytes: sizeOf({ shape }) * bytesOf[dtype] })),
  );
  await using file = await open(path, "wx", 0o600);
  await file.writeFile(head);
  const checksums = new Map<string, number>();
  for (const tensor of tensors) {
    let checksum = 0;
    for await (const numbers of "pieces" in tensor ? tensor.pieces : [tensor.data]) {
      const bits = inType(tensor.dtype, numbers);
      for (const piece of piecesOf(bits)) checksum = checksumOf(piece, checksum);
      await file.writeFile(new Uint8Array(bits.buffer, bits.byteOffset, bits.byteLength));
    }
    checksums.set(tensor.name, checksum);
  }
  await file.sync();
  return checksums;
}

/** What stands before the tensors' bytes. */
function headOf(
  tensors: readonly (TensorInfo & { readonly name: string; readonly sizeBytes: number })[],
  metadata: Readonly<Record<string, string>> = { format: "pt" },
): Uint8Array {
  let offset = 0;
  const entries = tensors.map(({ name, shape, dtype, sizeBytes }) => {
    const start = offset;
    offset += sizeBytes;
    return [name, { dtype, shape, data_offsets: [start, offset] }] as const;
  });
  const json = JSON.stringify({ [metadataKey]: metadata, ...Object.fromEntries(entries) });
  const header = Buffer.from(json + " ".repeat((8 - (Buffer.byteLength(json) % 8)) % 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header]);
}

/** Arrays, of which each is a tensor of one dimension. */
export type NamedArrays = Readonly<Record<string, Int32Array | Float32Array | Uint8Array>>;

/** A safetensors file of arrays that are in memory already; those of four bytes a number come first, as the format wants them. */
export function encodeArrays(arrays: NamedArrays): Uint8Array {
  const named = Object.entries(arrays).sort(([, a], [, b]) => b.BYTES_PER_ELEMENT - a.BYTES_PER_ELEMENT);
  const head = headOf(
    named.map(([name, array]) => ({
      ...{ name, dtype: array instanceof Int32Array ? "I32" : array instanceof Float32Array ? "F32" : "U8" },
      ...{ shape: [array.length], sizeBytes: array.byteLength },
    })),
  );
  return Buffer.concat([
    head,
    ...named.map(([, { buffer, byteOffset, byteLength }]) => new Uint8Array(buffer, byteOffset, byteLength)),
  ]);
}

/** The inverse. Throws `recording.invalid` for what is no such file. */
export function decodeArrays(file: Uint8Array): Map<string, Int32Array | Float32Array | Uint8Array> {
  const refuse = (what: string): never => {
    throw new TreadleError("recording.invalid", `no file of arrays: ${what}; copy it again`);
  };
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const headerBytes = file.byteLength < 8 ? Number.POSITIVE_INFINITY : Number(view.getBigUint64(0, true));
  if (8 + headerBytes > file.byteLength) return refuse(`it ends in its header, at '${file.byteLength}' bytes`);
  let json: unknown;
  try {
    json = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + headerBytes)));
  } catch {
    refuse("its header is not JSON");
  }
  const parsed = Header.safeParse(json);
  if (!parsed.success) return refuse(z.prettifyError(parsed.error));
  const problem = misplaced(parsed.data, file.byteLength - 8 - headerBytes);
  if (problem) return refuse(problem);
  const arrays = new Map<string, Int32Array | Float32Array | Uint8Array>();
  for (const [name, { dtype, data_offsets }] of parsed.data) {
    const bytes = Uint8Array.from(file.subarray(8 + headerBytes + data_offsets[0], 8 + headerBytes + data_offsets[1]));
    if (dtype !== "U8" && dtype !== "I32" && dtype !== "F32") return refuse(`'${name}' is of type '${dtype}'`);
    const { buffer } = bytes;
    arrays.set(name, dtype === "U8" ? bytes : dtype === "I32" ? new Int32Array(buffer) : new Float32Array(buffer));
  }
  return arrays;
}

/** Bytes of a number. */
export const bytesOf: Readonly<Record<FloatType, number>> = { F32: 4, BF16: 2 };

export const inType = (dtype: FloatType, numbers: Float32Array): Float32Array | Uint16Array =>
  dtype === "F32" ? numbers : toBfloat16(numbers);

/** What they are once they have been in that type. */
export const roundedTo = (dtype: FloatType, numbers: Float32Array): Float32Array =>
  dtype === "F32" ? numbers : fromBfloat16(toBfloat16(numbers));

/** One that is read here and there; whoever opens it closes it. */
export class TensorFile {
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly metadata: unknown;
  readonly #path: string;
  readonly #file: FileHandle;
  readonly #header: Header;

  private constructor(path: string, file: FileHandle, header: Header) {
    this.#path = path;
    this.#file = file;
    this.#header = header;
    this.tensors = header.tensors;
    this.metadata = header.metadata;
  }

  /** Throws as `readTensorInfos`. */
  static async open(path: string): Promise<TensorFile> {
    const file = await open(path);
    try {
      return new TensorFile(path, file, await readHeader(file, path));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** So many of a tensor's numbers from `start` on. Throws `config.invalid` for a type that is not read. */
  async read(name: string, start: number, count: number): Promise<Float32Array> {
    const { dtype, data_offsets } = this.#header.tensors.get(name)!;
    const type = floatTypeOf(dtype, name, this.#path);
    const bytes = new Uint8Array(count * bytesOf[type]);
    await fill(this.#file, bytes, this.#header.dataStart + data_offsets[0] + start * bytesOf[type], this.#path);
    return fromType(type, bytes);
  }

  close(): Promise<void> {
    return this.#file.close();
  }
}

/** Refuses a file that ends before: what is not read would be zeros. */
async function fill(file: FileHandle, bytes: Uint8Array, position: number, path: string): Promise<void> {
  for (const piece of piecesOf(bytes)) {
    for (let at = 0; at < piece.length; ) {
      const { bytesRead } = await file.read(piece, at, piece.length - at, position);
      if (bytesRead === 0) refuseFile(path, `it ends at '${position}' bytes`);
      at += bytesRead;
      position += bytesRead;
    }
  }
}

function floatTypeOf(dtype: string, name: string, path: string): FloatType {
  if (dtype === "F32" || dtype === "BF16") return dtype;
  throw new TreadleError("config.invalid", `'${name}' in '${path}' is of type '${dtype}'; 'F32' and 'BF16' are read`);
}

const fromType = (dtype: FloatType, bytes: Uint8Array): Float32Array =>
  dtype === "F32" ? new Float32Array(bytes.buffer) : fromBfloat16(new Uint16Array(bytes.buffer));

/** Rounds to the nearest, and to the even one of two; numbers are finite. */
function toBfloat16(data: Float32Array): Uint16Array {
  const bits = new Uint32Array(data.buffer, data.byteOffset, data.length);
  return Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

function fromBfloat16(halves: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}
