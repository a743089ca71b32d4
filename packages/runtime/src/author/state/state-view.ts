/** A saved state as `restore` sees it, wherever its files are. */
import { type StateFile, type StateManifest, TreadleError } from "@treadle/contracts";
import { checkedPieces, fileOf } from "./saved-state.ts";
import type { SavedFile, StatePart, StateReader } from "./state.ts";

export type StateSource = {
  /** as errors call the state */
  readonly folder: string;
  readonly manifest: StateManifest;
  /** where the file is on this machine, once it is */
  readonly locate: (rank: number, file: StateFile) => Promise<string>;
};

/** Of a folder that this machine sees. */
export function folderSource(folder: string, manifest: StateManifest): StateSource {
  return { folder, manifest, locate: async (rank, { name }) => fileOf(folder, rank, name) };
}

/** `rank`: whose part is its own, of how many (`numRanks`) that save. */
export function viewState(
  source: StateSource,
  own: { readonly worker: string; readonly rank: number; readonly numRanks: number },
): StateReader {
  const { manifest, folder } = source;
  const numParts = manifest.ranks.length;
  const part = (rank: number): StatePart => new PartView(source, rank);
  const ownPart = (): StatePart => {
    if (numParts === own.numRanks) return part(own.rank);
    throw new TreadleError(
      "checkpoint.parts",
      `state '${folder}' has the parts of '${numParts}' ranks, and '${own.worker}' is one of ${own.numRanks} that save: its class reads its own part alone; run the group with ${numParts} ranks, or let 'restore' read 'part(rank)' of each`,
      { details: { path: folder, expected: own.numRanks, found: numParts } },
    );
  };
  return {
    numParts,
    part,
    get names() {
      return ownPart().names;
    },
    bytes: async (name) => ownPart().bytes(name),
    text: async (name) => ownPart().text(name),
    stream: (name) => ownPart().stream(name),
  };
}

class PartView implements StatePart {
  readonly #source: StateSource;
  readonly #rank: number;
  readonly #files: readonly StateFile[];

  constructor(source: StateSource, rank: number) {
    const { manifest, folder } = source;
    this.#source = source;
    this.#rank = rank;
    const files = manifest.ranks[rank];
    if (files === undefined) {
      throw new TreadleError(
        "checkpoint.parts",
        `state '${folder}' has no part of rank '${rank}'; it has those of ranks 0 to ${manifest.ranks.length - 1}`,
        { details: { path: folder, rank } },
      );
    }
    this.#files = files;
  }

  get names(): readonly string[] {
    return this.#files.map(({ name }) => name);
  }

  async bytes(name: string): Promise<Uint8Array> {
    const { sizeBytes } = this.#file(name);
    const all = Buffer.allocUnsafe(sizeBytes);
    let at = 0;
    for await (const piece of await this.#pieces(name)) {
      all.set(piece, at);
      at += piece.byteLength;
    }
    return all;
  }

  async text(name: string): Promise<string> {
    return Buffer.from(await this.bytes(name)).toString("utf8");
  }

  stream(name: string): SavedFile {
    const pieces = () => this.#pieces(name);
    const checkedPath = async () => {
      for await (const _ of await pieces()); // MF2: read to its end before any of it is given
      return this.#source.locate(this.#rank, this.#file(name));
    };
    return {
      checkedPath,
      async *[Symbol.asyncIterator]() {
        await checkedPath();
        yield* await pieces();
      },
    };
  }

  async #pieces(name: string): Promise<AsyncGenerator<Uint8Array>> {
    const file = this.#file(name);
    const { folder, locate } = this.#source;
    return checkedPieces(await locate(this.#rank, file), { folder, rank: this.#rank, file });
  }

  #file(name: string): StateFile {
    const found = this.#files.find((file) => file.name === name);
    if (found) return found;
    const { folder } = this.#source;
    const known = this.names.map((each) => `'${each}'`).join(", ") || "none";
    throw new TreadleError(
      "checkpoint.corrupt",
      `state '${folder}' has no file '${name}' of rank ${this.#rank}; it has ${known}: another version of the worker's class wrote it; resume with that one`,
      { details: { path: folder, file: name, rank: this.#rank } },
    );
  }
}
