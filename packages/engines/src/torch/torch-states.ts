/** Checkpoints of an engine on PyTorch: what its processes have copied they write to files, and no number passes through Node unless the disk is elsewhere. */
import { createReadStream } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import type { FileToSave, SavedPieces } from "../engine.ts";
import { piecesOf } from "../pieces.ts";
import type { Message, TorchClient } from "./torch-client.ts";

type Copied = Promise<{ readonly copy: unknown }>;
type Written = { readonly sizeBytes: number; readonly sha256: string };

/** Of one copy, `numBytes` long. */
export function savedPieces(client: TorchClient, copied: Copied, numBytes: number): Required<SavedPieces> {
  return {
    async *[Symbol.asyncIterator]() {
      yield* client.download("ReadSaved", await copied);
    },
    async writeTo(path) {
      return writtenIn(await client.unary("WriteSaved", { ...(await copied), path }, numBytes));
    },
  };
}

/**
 * One of each process. The first that is asked for has all of them written, at once and beside one another: the others go to the same
 * folder, under the names that they have here in place of its own.
 */
export function savedFiles(
  client: TorchClient,
  copied: Copied,
  { processes, numBytes }: { readonly processes: number; readonly numBytes: number },
): FileToSave[] {
  const number = (index: number) => String(index).padStart(5, "0");
  const names = Array.from({ length: processes }, (_, at) => `${number(at + 1)}-of-${number(processes)}.safetensors`);
  let writing: { readonly paths: readonly string[]; readonly files: Promise<Written[]> } | undefined;
  const write = async (at: number, path: string): Promise<Written> => {
    writing ??= begin(namesBeside(path, names[at]!, names));
    if (writing.paths[at] !== path)
      throw new TreadleError(
        "engine.invalid-request",
        `a file of a checkpoint is to be '${path}' where the others make it '${writing.paths[at]}'; write all files of a checkpoint to one folder`,
      );
    return (await writing.files)[at]!;
  };
  const begin = (paths: readonly string[]) => {
    const files = copied
      .then((copy) => client.unary("WriteShards", { ...copy, paths }, numBytes))
      .then((reply) => (reply["files"] as Message[]).map(writtenIn));
    files.catch(() => {}); // whoever asks for one is told
    return { paths, files };
  };
  // Where the disk is another machine's, they are written here first.
  const own = new Temporary(names.length);
  return names.map((name, at) => ({
    name,
    async *[Symbol.asyncIterator]() {
      const path = join(await own.folder(), name);
      let isRead = false;
      try {
        await write(at, path);
        for await (const piece of createReadStream(path)) yield* piecesOf(piece as Uint8Array);
        isRead = true;
      } finally {
        await (isRead ? own.leave() : own.remove()); // whoever has not read one wants none of the others
      }
    },
    writeTo: (path) => write(at, path),
  }));
}

function namesBeside(path: string, own: string, names: readonly string[]): string[] {
  const file = basename(path);
  if (!file.endsWith(own))
    throw new TreadleError(
      "engine.invalid-request",
      `a file of a checkpoint is to be '${file}', which does not end in '${own}'; the engine names the files of its processes, and more may stand before that`,
    );
  return names.map((each) => join(dirname(path), file.slice(0, -own.length) + each));
}

const writtenIn = (reply: Message): Written => ({
  sizeBytes: reply["num_bytes"] as number,
  sha256: reply["sha256"] as string,
});

/** A folder that goes with the last of those that use it. */
class Temporary {
  #folder: Promise<string> | undefined;
  #left: number;

  constructor(users: number) {
    this.#left = users;
  }

  folder(): Promise<string> {
    this.#folder ??= mkdtemp(join(tmpdir(), "treadle-checkpoint-"));
    return this.#folder;
  }

  async leave(): Promise<void> {
    this.#left -= 1;
    if (this.#left === 0) await this.remove();
  }

  async remove(): Promise<void> {
    if (this.#folder) await rm(await this.#folder, { recursive: true, force: true });
  }
}
