/**
 * Tensors in a file as safetensors lays them out: 8 bytes with the header's length (little-endian), the header as JSON, and
 * the tensors' bytes, without gaps.
 */
import { type FileHandle, open } from "node:fs/promises";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { checksumOf, inHex } from "../checksum.ts";
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

type Header = { readonly tensors: z.infer<typeof Header>; readonly dataStart: number };

async function readHeader(file: FileHandle, path: string): Promise<Header> {
  const refuse = (what: string): never => {
    throw new TreadleError("config.invalid", `'${path}' is no whole safetensors file: ${what}; copy it again`);
  };
  const { size: sizeBytes } = await file.stat();
  const length = Buffer.alloc(8);
  const { bytesRead } = await file.read(length, 0, 8, 0);
  const headerBytes = bytesRead === 8 ? Number(length.readBigUInt64LE()) : Number.POSITIVE_INFINITY;
  if (headerBytes > maxHeaderBytes || 8 + headerBytes > sizeBytes)
    refuse(`it ends in its header, at '${sizeBytes}' bytes`);
  const text = Buffer.alloc(headerBytes);
  await file.read(text, 0, headerBytes, 8);
  let json: unknown;
  try {
    json = JSON.parse(text.toString("utf8"));
  } catch {
    refuse("its header is not JSON");
  }
  const parsed = Header.safeParse(json);
  if (!parsed.success) return refuse(z.prettifyError(parsed.error));
  const dataStart = 8 + headerBytes;
  let end = 0;
  for (const { data_offsets } of parsed.data.values()) end = Math.max(end, data_offsets[1]);
  if (dataStart + end !== sizeBytes)
    refuse(`it has '${sizeBytes}' bytes where its header tells of '${dataStart + end}'`);
  return { tensors: parsed.data, dataStart };
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
    let position = dataStart + data_offsets[0];
    for (const piece of piecesOf(bytes)) {
      await file.read(piece, 0, piece.length, position);
      position += piece.length;
    }
    check(name, bytes);
    if (dtype === "F32") read.push({ name, shape, data: new Float32Array(bytes.buffer) });
    else if (dtype === "BF16") read.push({ name, shape, data: fromBfloat16(new Uint16Array(bytes.buffer)) });
    else
      throw new TreadleError(
        "config.invalid",
        `'${name}' in '${path}' is of type '${dtype}'; 'F32' and 'BF16' are read`,
      );
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

/** Writes one tensor after another, and returns when the disk has them, with what it wrote of each. */
export async function writeTensors(
  path: string,
  tensors: readonly (Tensor & { readonly dtype: FloatType })[],
): Promise<Checksums> {
  let offset = 0;
  const entries = tensors.map(({ name, shape, data, dtype }) => {
    const start = offset;
    offset += data.length * (dtype === "F32" ? 4 : 2);
    return [name, { dtype, shape, data_offsets: [start, offset] }] as const;
  });
  const json = JSON.stringify({ [metadataKey]: { format: "pt" }, ...Object.fromEntries(entries) });
  const header = Buffer.from(json + " ".repeat((8 - (Buffer.byteLength(json) % 8)) % 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  await using file = await open(path, "wx", 0o600);
  await file.writeFile(length);
  await file.writeFile(header);
  const checksums = new Map<string, number>();
  for (const { name, data, dtype } of tensors) {
    const numbers = dtype === "F32" ? data : toBfloat16(data);
    let checksum = 0;
    for (const piece of piecesOf(numbers)) checksum = checksumOf(piece, checksum);
    checksums.set(name, checksum);
    await file.writeFile(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength));
  }
  await file.sync();
  return checksums;
}

/** Rounds to the nearest, and to the even one of two; numbers are finite. */
function toBfloat16(data: Float32Array): Uint16Array {
  const bits = new Uint32Array(data.buffer, data.byteOffset, data.length);
  return Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

function fromBfloat16(halves: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}
