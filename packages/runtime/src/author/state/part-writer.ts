/**
 * Writes one rank's part of a state, file after file and piece by piece, and sums up what it has written.
 *
 * PW1 of a file at most two pieces are held beside what the worker holds, however large the file is; what has more than one is
 *    summed up and written by another thread, so that the main thread may compute meanwhile.
 */
import { createHash } from "node:crypto";
import { type FileHandle, mkdir, open, stat } from "node:fs/promises";
import { join } from "node:path";
import { StateFile, StateFileName, TreadleError } from "@treadle/contracts";
import { guardDisk } from "../guard-disk.ts";
import { FileThread } from "./file-thread.ts";
import type { SelfWritten, StateData, StateWriter } from "./state.ts";

export const pieceBytes = 4 * 2 ** 20;

/** Where a file goes. `end` resolves, with its SHA-256, when it is on the disk. */
export interface FileSink {
  /** The piece may change once this has resolved. */
  write(piece: Uint8Array): Promise<unknown>;
  end(): Promise<string>;
  /** instead of `end`, when nothing more comes */
  abandon(): Promise<void>;
}

/** `isLarge`: more than a piece may come. */
export type OpenSink = (name: string, isLarge: boolean) => Promise<FileSink>;

export class PartWriter implements StateWriter {
  readonly #openSink: OpenSink;
  readonly #folder: string | undefined;
  readonly #names = new Set<string>();
  readonly #files: StateFile[] = [];
  #tail: Promise<void> = Promise.resolve();

  /** `folder`: of the part, where another process may write what is `SelfWritten`. */
  constructor(openSink: OpenSink, folder?: string) {
    this.#openSink = openSink;
    this.#folder = folder;
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
    const folder = this.#folder;
    if (folder !== undefined && writesItself(data)) {
      const path = join(folder, name);
      const { size, told } = await guardDisk(path, async () => {
        await makeFolder(folder);
        const told = await data.writeTo(path);
        return {
          told,
          size: await stat(path).then(
            ({ size }) => size,
            () => undefined,
          ),
        };
      });
      const { data: file, error } = StateFile.safeParse({ ...told, name });
      if (file?.sizeBytes !== size || !file)
        throw new TreadleError(
          "workflow.invalid",
          `'writeTo' of the state's file '${name}' wrote ${size === undefined ? "none" : `'${size}' bytes`} and resolved with '${JSON.stringify(told)}'${error ? `, of which ${error.issues[0]?.path.join(".")} is not allowed` : ""}; it resolves with the sizeBytes and the sha256 of the file, once that is on the disk`,
        );
      this.#files.push(file);
      return;
    }
    const isWhole = typeof data === "string" || (data instanceof Uint8Array && data.byteLength <= pieceBytes);
    const sink = await this.#openSink(name, !isWhole);
    let sizeBytes = 0;
    try {
      for await (const piece of piecesOf(data)) {
        sizeBytes += piece.byteLength;
        await sink.write(piece); // PW1
      }
    } catch (error) {
      await sink.abandon().catch(() => {});
      throw error;
    }
    this.#files.push({ name, sizeBytes, sha256: await sink.end() });
  }
}

const writesItself = (data: StateData): data is SelfWritten => typeof data === "object" && "writeTo" in data;
const makeFolder = (path: string) => mkdir(path, { recursive: true, mode: 0o700 });

/** Of a size that neither a disk nor the event loop minds. */
async function* piecesOf(data: StateData): AsyncGenerator<Uint8Array> {
  if (typeof data === "string") yield* piecesOf(Buffer.from(data));
  else if (data instanceof Uint8Array) {
    for (let start = 0; start < data.byteLength; start += pieceBytes) yield data.subarray(start, start + pieceBytes);
  } else for await (const each of data) yield* piecesOf(each);
}

/** One for all large files of the process. */
let thread: FileThread | undefined;

/** Files of a folder, made as they come. Rejects with `disk.full`. */
export function folderSink(folder: string): OpenSink {
  return async (name, isLarge) => {
    const path = join(folder, name);
    await guardDisk(path, () => makeFolder(folder));
    return isLarge ? largeFile(path) : smallFile(path);
  };
}

/** PW1. A thread's pieces are copies, so the next one is made while it writes the one before. */
async function largeFile(path: string): Promise<FileSink> {
  thread ??= new FileThread();
  const writer = thread;
  const id = await guardDisk(path, () => writer.open(path));
  let before: Promise<unknown> = Promise.resolve();
  return {
    write: (piece) => {
      const written = before;
      before = writer.write(id, piece);
      before.catch(() => {}); // the next one says it, or the end
      return guardDisk(path, () => written);
    },
    end: () => guardDisk(path, () => before.then(() => writer.end(id))),
    abandon: () => writer.abandon(id),
  };
}

async function smallFile(path: string): Promise<FileSink> {
  const file: FileHandle = await guardDisk(path, () => open(path, "w", 0o600));
  return withChecksum({
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
  });
}

/** For what is written elsewhere than where it is summed up. */
export function withChecksum(sink: Omit<FileSink, "end"> & { readonly end: () => Promise<void> }): FileSink {
  const hash = createHash("sha256");
  return {
    write: async (piece) => {
      const written = sink.write(piece);
      hash.update(piece);
      await written;
    },
    end: async () => {
      await sink.end();
      return hash.digest("hex");
    },
    abandon: sink.abandon,
  };
}
