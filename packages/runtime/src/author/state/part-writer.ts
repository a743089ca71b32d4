/**
 * Writes one rank's part of a state, file after file and piece by piece, and sums up what it has written.
 *
 * PW1 of a file at most one piece is held beside what the worker holds, however large the file is.
 */
import { createHash } from "node:crypto";
import { type FileHandle, mkdir, open } from "node:fs/promises";
import { join } from "node:path";
import { type StateFile, StateFileName, TreadleError } from "@treadle/contracts";
import { guardDisk } from "../guard-disk.ts";
import type { StateData, StateWriter } from "./state.ts";

export const pieceBytes = 4 * 2 ** 20;

/** Where a file goes. `end` resolves when it is on the disk. */
export interface FileSink {
  write(piece: Uint8Array): Promise<void>;
  end(): Promise<void>;
  /** instead of `end`, when nothing more comes */
  abandon(): Promise<void>;
}

export class PartWriter implements StateWriter {
  readonly #openSink: (name: string) => Promise<FileSink>;
  readonly #names = new Set<string>();
  readonly #files: StateFile[] = [];
  #tail: Promise<void> = Promise.resolve();

  constructor(openSink: (name: string) => Promise<FileSink>) {
    this.#openSink = openSink;
  }

  write(name: string, data: StateData): Promise<void> {
    const problem = this.#problemOf(name);
    this.#names.add(name);
    const written = this.#tail.then(() => {
      if (problem === undefined) return this.#writeFile(name, data);
      throw new TreadleError("workflow.invalid", `a worker saves a file of its state as '${name}': ${problem}`);
    });
    this.#tail = written;
    written.catch(() => {}); // `finish` says it, to a worker that does not wait
    return written;
  }

  /** The files of the part, once all of them are on the disk. */
  async finish(): Promise<StateFile[]> {
    await this.#tail;
    return this.#files;
  }

  #problemOf(name: string): string | undefined {
    if (this.#names.has(name)) return "its part has a file of that name already";
    return StateFileName.safeParse(name).error?.issues[0]?.message;
  }

  async #writeFile(name: string, data: StateData): Promise<void> {
    const sink = await this.#openSink(name);
    const hash = createHash("sha256");
    let sizeBytes = 0;
    try {
      for await (const piece of piecesOf(data)) {
        const writing = sink.write(piece);
        hash.update(piece);
        sizeBytes += piece.byteLength;
        await writing; // PW1
      }
    } catch (error) {
      await sink.abandon().catch(() => {});
      throw error;
    }
    await sink.end();
    this.#files.push({ name, sizeBytes, sha256: hash.digest("hex") });
  }
}

/** Of a size that neither a disk nor the event loop minds. */
async function* piecesOf(data: StateData): AsyncGenerator<Uint8Array> {
  if (typeof data === "string") yield* piecesOf(Buffer.from(data));
  else if (data instanceof Uint8Array) {
    for (let start = 0; start < data.byteLength; start += pieceBytes) yield data.subarray(start, start + pieceBytes);
  } else for await (const each of data) yield* piecesOf(each);
}

/** Files of a folder, made as they come. Rejects with `disk.full`. */
export function folderSink(folder: string): (name: string) => Promise<FileSink> {
  return async (name) => {
    const path = join(folder, name);
    const file: FileHandle = await guardDisk(path, async () => {
      await mkdir(folder, { recursive: true });
      return await open(path, "w");
    });
    return {
      write: (piece) => guardDisk(path, () => file.appendFile(piece)),
      end: () =>
        guardDisk(path, async () => {
          try {
            await file.datasync();
          } finally {
            await file.close();
          }
        }),
      abandon: () => file.close(),
    };
  };
}
