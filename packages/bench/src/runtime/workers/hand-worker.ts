import { closeSync, openSync, readSync, rmSync, writeSync } from "node:fs";
import { Worker } from "@treadle/runtime";

const folder = "/dev/shm";
const cacheLineFloats = 16;

/** Writes and reads a file in shared memory by hand, always the same bytes into and out of the same memory. */
export class HandWorker extends Worker<Record<string, never>> {
  static override readonly module: string = import.meta.url;
  #fd: number | undefined;
  #path: string | undefined;
  protected data = new Float32Array(0);

  async make(name: string, sizeBytes: number): Promise<void> {
    this.#path = `${folder}/${name}`;
    this.#fd = openSync(this.#path, "w+", 0o600);
    this.data = new Float32Array(sizeBytes / 4).fill(1);
    await this.write();
  }

  async open(name: string, sizeBytes: number): Promise<void> {
    this.#fd = openSync(`${folder}/${name}`, "r");
    this.data = new Float32Array(sizeBytes / 4);
  }

  async write(): Promise<void> {
    const bytes = new Uint8Array(this.data.buffer);
    for (let at = 0; at < bytes.length; ) at += writeSync(this.#fd as number, bytes, at, bytes.length - at, at);
  }

  async read(): Promise<number> {
    const bytes = new Uint8Array(this.data.buffer);
    for (let at = 0; at < bytes.length; ) at += readSync(this.#fd as number, bytes, at, bytes.length - at, at);
    let sum = 0;
    for (let index = 0; index < this.data.length; index += cacheLineFloats) sum += this.data[index] as number;
    return sum;
  }

  override async teardown(): Promise<void> {
    if (this.#fd !== undefined) closeSync(this.#fd);
    if (this.#path !== undefined) rmSync(this.#path, { force: true });
  }
}
