/** What workers save of themselves, and get back in a new process: files, each written and read in pieces. */
import type { StateFile } from "@treadle/contracts";

/** A file's content. Pieces of any size; of an iterable, each is asked for when the one before is on its way. */
export type StateData = Uint8Array | string | Iterable<Uint8Array> | AsyncIterable<Uint8Array> | SelfWritten;

/** Pieces that another process has. Where the state's folder is on this machine, that process writes the file, and no piece passes through this one. */
export type SelfWritten = AsyncIterable<Uint8Array> & {
  /** Asked in place of the pieces. Writes the file, flushed to the disk, and resolves with its size and SHA-256. */
  writeTo(path: string): Promise<Omit<StateFile, "name">>;
};

export type SavedFile = AsyncIterable<Uint8Array> & {
  /** In place of the pieces, for another process that reads the file: its path on this machine, once it was checked. */
  checkedPath(): Promise<string>;
};

/** Takes the files of one rank's part of a state. */
export interface StateWriter {
  /**
   * Resolves when the file is on the disk. What is not awaited is written after `checkpoint` has resolved: then the data must
   * not change any more, as a copy does not. Names are letters, digits, `.`, `_` and `-`; each is given once. Rejects with
   * `disk.full`.
   */
  write(name: string, data: StateData): Promise<void>;
}

/** The files that one rank has saved. Each is checked against its checksum before any byte of it is given. */
export interface StatePart {
  readonly names: readonly string[];
  /** The whole file, of at most the size that Node has buffers for: 4 GiB in Node 20. Throws `checkpoint.corrupt`. */
  bytes(name: string): Promise<Uint8Array>;
  /** The whole file, as UTF-8. Throws `checkpoint.corrupt`. */
  text(name: string): Promise<string>;
  /** The file piece by piece, for what need not be in memory at once. Throws `checkpoint.corrupt`. */
  stream(name: string): SavedFile;
}

/**
 * The state that a process begins with, and of it the part that is its own: what this rank saved, or, where the first rank
 * alone saves, what that one did. Where every rank saves and the group has another size now, reading the own part throws
 * `checkpoint.parts`: a worker that can divide its state anew reads `part(rank)` of each.
 */
export interface StateReader extends StatePart {
  readonly numParts: number;
  part(rank: number): StatePart;
}
