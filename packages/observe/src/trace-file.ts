/**
 * Trace files: one span batch a line. Writing appends, reading streams, and both hold one batch in memory at a time.
 */
import { closeSync, createReadStream, fstatSync, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { createInterface } from "node:readline";
import { type SpanBatch, TreadleError } from "@treadle/contracts";
import { batchOf, traceColumns, traceLine } from "./trace-line.ts";

/**
 * Appends span batches to a file of at most `maxBytes`. When that is full, later batches are counted and dropped: a
 * trace must never fill the disk of the run it watches.
 */
export class TraceWriter implements Disposable {
  readonly path: string;
  readonly #maxBytes: number;
  #descriptor: number | undefined;
  #sizeBytes: number;
  #droppedRecords = 0;

  constructor(path: string, options: { maxBytes?: number | undefined } = {}) {
    this.path = path;
    this.#maxBytes = options.maxBytes ?? 1024 ** 3;
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    this.#descriptor = openSync(path, "a", 0o600);
    this.#sizeBytes = fstatSync(this.#descriptor).size;
  }

  /** records that came after the file was full, or after it could not be written */
  get droppedRecords(): number {
    return this.#droppedRecords;
  }

  append(batch: SpanBatch): void {
    if (batch.records.length === 0 && batch.dropped === 0) return;
    const line = Buffer.from(`${traceLine(batch)}\n`);
    if (this.#descriptor === undefined || this.#sizeBytes + line.length > this.#maxBytes) {
      this.#droppedRecords += batch.records.length;
      return;
    }
    try {
      for (let done = 0; done < line.length; ) done += writeSync(this.#descriptor, line, done);
      this.#sizeBytes += line.length;
    } catch {
      // A full disk ends the run through what it needs, not through its trace.
      this.#droppedRecords += batch.records.length;
    }
  }

  close(): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
    this.#descriptor = undefined;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/**
 * The batches of trace files, one file after the other, records in the order of their ends. Lines that a killed or full writer left half written are
 * skipped; a line that is whole JSON and no span batch is an error, since the file is then no trace.
 */
export async function* readTrace(files: readonly string[]): AsyncGenerator<SpanBatch> {
  for (const file of files) {
    const lines = createInterface({ input: createReadStream(file, "utf8"), crlfDelay: Number.POSITIVE_INFINITY });
    let number = 0;
    for await (const line of lines) {
      number++;
      let value: unknown;
      try {
        value = JSON.parse(line);
      } catch {
        continue;
      }
      yield batchIn(value, () => `line ${number} of '${file}' is not a batch of spans`);
    }
  }
}

function batchIn(value: unknown, complaint: () => string): SpanBatch {
  const columns = traceColumns(value);
  let cause: unknown;
  try {
    if (columns !== undefined) return batchOf(columns);
  } catch (error) {
    cause = error;
  }
  throw new TreadleError("journal.corrupt", complaint(), { cause });
}
