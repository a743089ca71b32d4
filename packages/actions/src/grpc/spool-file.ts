import { randomUUID } from "node:crypto";
import { closeSync, openSync, readSync, unlinkSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A file that nobody but this descriptor knows, so that it goes with the process. */
export class SpoolFile {
  /** where the next chunk goes */
  bytes = 0;
  readonly #descriptor: number;

  constructor() {
    const path = join(tmpdir(), `treadle-output-${randomUUID()}`);
    this.#descriptor = openSync(path, "wx+", 0o600);
    unlinkSync(path);
  }

  append(chunk: Buffer): void {
    for (let done = 0; done < chunk.length; )
      done += writeSync(this.#descriptor, chunk, done, chunk.length - done, this.bytes + done);
    this.bytes += chunk.length;
  }

  read(at: number, bytes: number): Buffer {
    const chunk = Buffer.alloc(bytes);
    for (let done = 0; done < bytes; ) done += readSync(this.#descriptor, chunk, done, bytes - done, at + done);
    return chunk;
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}
