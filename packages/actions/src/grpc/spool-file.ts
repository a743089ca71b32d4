import { randomUUID } from "node:crypto";
import { closeSync, openSync, readSync, unlinkSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A file that nobody but this descriptor knows, so that it goes with the process. */
export class SpoolFile {
  /** where the next chunk goes */
  bytes = 0;
  readonly #descriptor: number;

  private constructor() {
    const path = join(tmpdir(), `treadle-output-${randomUUID()}`);
    this.#descriptor = openSync(path, "wx+", 0o600);
    unlinkSync(path);
  }

  /** Undefined where there is no room for a file, nor a descriptor: what commands write may fill the same disk. */
  static open(): SpoolFile | undefined {
    try {
      return new SpoolFile();
    } catch {
      return undefined;
    }
  }

  /** False, and nothing is appended, where there is no room. */
  append(chunk: Buffer): boolean {
    try {
      for (let done = 0; done < chunk.length; )
        done += writeSync(this.#descriptor, chunk, done, chunk.length - done, this.bytes + done);
    } catch {
      return false;
    }
    this.bytes += chunk.length;
    return true;
  }

  /** Of what was appended. */
  read(at: number, bytes: number): Buffer {
    const chunk = Buffer.alloc(bytes);
    for (let done = 0; done < bytes; ) {
      const read = readSync(this.#descriptor, chunk, done, bytes - done, at + done);
      if (read === 0) throw new Error(`a spool file of '${this.bytes}' bytes has none at '${at + done}'`);
      done += read;
    }
    return chunk;
  }

  /** Of what was appended, from the beginning to the end; made as it is taken. */
  *pieces(bytes = 2 ** 18): Generator<Buffer> {
    for (let at = 0; at < this.bytes; at += bytes) yield this.read(at, Math.min(bytes, this.bytes - at));
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}
