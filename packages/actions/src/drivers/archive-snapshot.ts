/**
 * Copies of a sandbox's folders as archives on this machine's disk, where a driver has no better way. They are made and unpacked
 * inside of sandboxes, as the user that commands run as: nothing outside follows a link or trusts a name that a command made.
 */
import { closeSync, createReadStream, openSync, writeSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { type ExecRequest, type Sandbox, type Snapshot, tooLarge } from "./sandbox.ts";
import { failed, listContent, ofCopies, printedBy } from "./sandbox-archive.ts";

type Runs = Pick<Sandbox, "exec">;

/** What is in a folder, without the folder itself: who owns that, and what it allows, is its sandbox's to say. */
const pack = `cd -- "$1" 2>/dev/null || exit 0; ${listContent}; [ $# -eq 0 ] || exec tar -c -f - "$@"`;
/** What tar complains of on a full disk: GNU's of writing, of making files, busybox's. */
const saysFull = /No space left on device|Wrote only \d+ of \d+ bytes|short write/;
const unpack = 'mkdir -p -- "$1" && exec tar -x -p -f - -C "$1"';

export class ArchiveSnapshot implements Snapshot {
  readonly bytes: number;
  readonly #folder: string;
  /** of each archive; one of an empty folder is empty */
  readonly #sizes: readonly number[];

  private constructor(folder: string, sizes: readonly number[]) {
    this.#folder = folder;
    this.#sizes = sizes;
    this.bytes = total(sizes);
  }

  /** Of the sandbox's `folders`, which the other is asked for in the same order; kept in `folder`, which is made. */
  static async of(
    sandbox: Runs,
    folders: readonly string[],
    folder: string,
    { maxBytes, signal }: { readonly maxBytes: number; readonly signal: AbortSignal },
  ): Promise<ArchiveSnapshot> {
    await mkdir(folder, { recursive: true });
    const sizes: number[] = [];
    try {
      for (const [at, from] of folders.entries()) {
        const file = openSync(join(folder, String(at)), "wx", 0o600);
        try {
          sizes.push(await packInto(file, sandbox, from, { maxBytes: maxBytes - total(sizes), signal }));
        } finally {
          closeSync(file);
        }
      }
      return new ArchiveSnapshot(folder, sizes);
    } catch (error) {
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Throws `action.invalid` for one of another driver. */
  static ofOwn(snapshot: Snapshot | undefined): ArchiveSnapshot | undefined {
    if (snapshot === undefined || snapshot instanceof ArchiveSnapshot) return snapshot;
    throw new TreadleError("action.invalid", "a snapshot is of another driver's sandbox; give one of this driver's");
  }

  /** Throws `sandbox.failed`. */
  async unpackInto(sandbox: Runs, folders: readonly string[], signal?: AbortSignal): Promise<void> {
    for (const [at, folder] of folders.entries()) {
      if (this.#sizes[at] === 0) continue;
      const archive = createReadStream(join(this.#folder, String(at)));
      archive.on("error", () => {}); // then the archive ends too soon, and tar says so
      try {
        const command: ExecRequest["command"] = ["sh", "-c", unpack, "sh", folder];
        const result = await sandbox.exec({ command, stdin: archive, ...ofCopies, signal });
        signal?.throwIfAborted();
        if (result.exitCode === 0) continue;
        if (saysFull.test(result.stderr.toString()))
          throw new TreadleError(
            "sandbox.failed",
            `a snapshot of '${this.bytes}' bytes does not fit in '${folder}' of what begins from it; give it more disk_bytes, and for /tmp more memory_bytes, or snapshot less`,
          );
        throw failed(`the files of a snapshot could not be unpacked in '${folder}'`, result);
      } finally {
        archive.destroy();
      }
    }
  }

  async drop(): Promise<void> {
    await rm(this.#folder, { recursive: true, force: true });
  }
}

const total = (sizes: readonly number[]): number => sizes.reduce((sum, bytes) => sum + bytes, 0);

async function packInto(
  file: number,
  sandbox: Runs,
  folder: string,
  { maxBytes, signal }: { readonly maxBytes: number; readonly signal: AbortSignal },
): Promise<number> {
  let bytes = 0;
  const take = (chunk: Buffer): void => {
    bytes += chunk.length;
    if (append(file, chunk)) return;
    throw new TreadleError("sandbox.failed", "a snapshot could not be written: the disk is full; make room in TMPDIR");
  };
  const result = await printedBy(sandbox, ["sh", "-c", pack, "sh", folder], { maxBytes, signal, take });
  if (result.status === "output-limit") throw tooLarge(maxBytes);
  if (result.exitCode !== 0) throw failed(`the files in '${folder}' could not be copied`, result);
  return bytes;
}

/** At once, so that what waits to be written takes no memory. */
function append(file: number, chunk: Buffer): boolean {
  try {
    for (let at = 0; at < chunk.length; ) at += writeSync(file, chunk, at);
    return true;
  } catch {
    return false;
  }
}
