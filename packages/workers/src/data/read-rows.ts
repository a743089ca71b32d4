/**
 * Rows of JSONL and Parquet files, one after the other. A JSONL file is read in chunks and a Parquet file by row groups,
 * so memory depends on the longest line or the largest row group, and not on the file.
 */
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { extname } from "node:path";
import * as zlib from "node:zlib";
import { TreadleError } from "@treadle/contracts";
import type { Compressors } from "hyparquet";

/** A row, and where it stands for people: `line 7 of 'train.jsonl'`. */
export type Row = { readonly value: Record<string, unknown>; readonly where: string };

/** Longest line of a JSONL file, in bytes. */
export const maxLineBytes = 16 * 2 ** 20;

/** Throws `data.invalid` for a file or a row that cannot be read. */
export async function* readRows(path: string, name: string): AsyncGenerator<Row> {
  const kind = extname(path).toLowerCase();
  const found = await stat(path).catch(() => undefined);
  if (!found?.isFile()) throw invalid(`'${name}' is not a file: name one that exists, from the project's root`);
  if (kind === ".jsonl" || kind === ".ndjson") yield* readJsonLines(path, name);
  else if (kind === ".parquet") yield* readParquet(path, name);
  else
    throw invalid(`'${name}' ends in '${kind}': allowed are .jsonl, .ndjson and .parquet; convert it to one of them`);
}

async function* readJsonLines(path: string, name: string): AsyncGenerator<Row> {
  const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: false });
  let number = 0;
  for await (const line of readLines(path, name)) {
    number += 1;
    const where = `line ${number} of '${name}'`;
    let text: string;
    try {
      text = utf8.decode(line);
    } catch {
      throw invalid(`${where} is not UTF-8: save the file as UTF-8`);
    }
    if (text.trim() === "") continue;
    yield { value: parseRow(text, where), where };
  }
}

function parseRow(text: string, where: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw invalid(
      `${where} is not JSON, '${shortened(text)}' (${(error as Error).message}): allowed is one object a line`,
    );
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw invalid(`${where} is '${shortened(text)}': allowed is one JSON object a line`);
}

/** The lines without their ends. What is left of a chunk waits for the next; a line beyond the limit is refused as it grows. */
async function* readLines(path: string, name: string): AsyncGenerator<Buffer> {
  let parts: Buffer[] = [];
  let size = 0;
  let number = 1;
  for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 18 }) as AsyncIterable<Buffer>) {
    let from = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      yield Buffer.concat([...parts, chunk.subarray(from, end)]);
      [parts, size, from] = [[], 0, end + 1];
      number += 1;
    }
    parts.push(chunk.subarray(from));
    size += chunk.length - from;
    if (size > maxLineBytes) {
      const most = `'${maxLineBytes / 2 ** 20}' MiB`;
      throw invalid(
        `line ${number} of '${name}' is longer than ${most}: allowed is one JSON object of at most ${most} a line`,
      );
    }
  }
  if (size > 0) yield Buffer.concat(parts);
}

/** Snappy is the reader's own; Node has the others, Zstandard from 22.15 on. */
const { zstdDecompressSync } = zlib as { zstdDecompressSync?: (input: Uint8Array) => Uint8Array };
const compressors: Compressors = {
  GZIP: (input) => zlib.gunzipSync(input),
  BROTLI: (input) => zlib.brotliDecompressSync(input),
  ...(zstdDecompressSync && { ZSTD: (input: Uint8Array) => zstdDecompressSync(input) }),
};

async function* readParquet(path: string, name: string): AsyncGenerator<Row> {
  const { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } = await import("hyparquet");
  try {
    const file = await asyncBufferFromFile(path);
    const metadata = await parquetMetadataAsync(file);
    let rowStart = 0;
    for (const group of metadata.row_groups) {
      const rowEnd = rowStart + Number(group.num_rows);
      const rows = await parquetReadObjects({ file, metadata, rowStart, rowEnd, compressors });
      for (const [index, row] of rows.entries()) {
        yield { value: plain(row) as Record<string, unknown>, where: `row ${rowStart + index + 1} of '${name}'` };
      }
      rowStart = rowEnd;
    }
  } catch (error) {
    if (error instanceof TreadleError) throw error;
    throw invalid(`'${name}' cannot be read as Parquet (${(error as Error).message}): write it again, or as JSONL`);
  }
}

/** As JSON would have it. */
function plain(value: unknown): unknown {
  if (typeof value === "bigint") return Number.isSafeInteger(Number(value)) ? Number(value) : value.toString();
  if (value instanceof Date) return value.toISOString();
  if (ArrayBuffer.isView(value)) return Array.from(value as Uint8Array);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value ?? null;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]));
}

export const invalid = (message: string): TreadleError => new TreadleError("data.invalid", message);

export const shortened = (text: string): string => (text.length > 80 ? `${text.slice(0, 79)}…` : text);
