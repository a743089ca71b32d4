import { openSync, readSync, writeSync } from "node:fs";
import { StringDecoder } from "node:string_decoder";

/** Records in one order, which everybody who reads it sees. */
export interface SharedLog<T> {
  append(record: T): void;
  /** Those that this reader has not read. */
  read(): T[];
}

export class MemoryLog<T> implements SharedLog<T> {
  readonly #records: T[] = [];

  append(record: T): void {
    this.#records.push(record);
  }
  read(): T[] {
    return this.#records.splice(0);
  }
}

/** A file that processes append to: the kernel puts their records in one order. */
export class FileLog<T> implements SharedLog<T> {
  readonly #file: number;
  readonly #decoder = new StringDecoder("utf8");
  readonly #chunk = Buffer.alloc(16 * 1024);
  #offset = 0;
  #rest = "";

  constructor(path: string) {
    this.#file = openSync(path, "a+", 0o600);
  }

  append(record: T): void {
    writeSync(this.#file, `${JSON.stringify(record)}\n`);
  }

  read(): T[] {
    let text = this.#rest;
    for (;;) {
      const size = readSync(this.#file, this.#chunk, 0, this.#chunk.length, this.#offset);
      if (size === 0) break;
      this.#offset += size;
      text += this.#decoder.write(this.#chunk.subarray(0, size));
    }
    const lines = text.split("\n");
    this.#rest = lines.pop() as string;
    return lines.map((line) => JSON.parse(line) as T);
  }
}
