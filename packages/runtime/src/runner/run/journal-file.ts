/**
 * A run's log in a file of its folder: one entry a line, each with a checksum, synced before it counts.
 *
 * LG2: a last line without its end is what a killed runner leaves and is dropped; a damaged line that has its end is
 * `journal.corrupt`.
 *
 * LG3: only the runner that opened the file last writes it, whatever became of locks while another one was suspended:
 * opening takes the file from where it is before reading it, and an entry counts only if the file is still in its place
 * once the entry is in it. So what the earlier runner was told is committed is in what the later one reads, and from
 * then on the earlier one is told `run.locked`.
 */
import { createHash } from "node:crypto";
import { type FileHandle, open, readFile, rename, rm, stat } from "node:fs/promises";
import { type RunLog, TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { guardDisk } from "../../author/guard-disk.ts";

function unlessMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== "ENOENT") throw error;
}

const checksumOf = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 16);
const lineOf = (entry: string): string => `${checksumOf(entry)} ${entry}\n`;

export class JournalFile implements RunLog {
  readonly #entries: string[];
  readonly #file: FileHandle;
  readonly #path: string;

  private constructor(path: string, file: FileHandle, entries: string[]) {
    this.#path = path;
    this.#file = file;
    this.#entries = entries;
  }

  static async open(path: string): Promise<JournalFile> {
    // A runner that was killed in here has left the taken file, and perhaps its copy, which is then whole.
    const taken = `${path}.taken`;
    await rename(path, taken).catch(unlessMissing);
    const bytes = (await readFile(taken).catch(unlessMissing)) ?? Buffer.alloc(0);
    try {
      const { entries, validBytes } = readEntries(bytes.toString("utf8"), path);
      await guardDisk(path, () => writeFileAtomic(path, bytes.subarray(0, validBytes), { mode: 0o600 }));
      const file = await guardDisk(path, () => open(path, "a", 0o600));
      await rm(taken, { force: true });
      return new JournalFile(path, file, entries);
    } catch (error) {
      await rename(taken, path).catch(unlessMissing);
      throw error;
    }
  }

  /** A file with these entries, whatever it held before. */
  static async replace(path: string, entries: readonly string[]): Promise<JournalFile> {
    await guardDisk(path, () => writeFileAtomic(path, entries.map(lineOf).join(""), { mode: 0o600 }));
    return JournalFile.open(path);
  }

  get entries(): readonly string[] {
    return this.#entries;
  }

  /** The files of an entry are in the folder already, and synced there. */
  async append(entry: string): Promise<void> {
    await guardDisk(this.#path, async () => {
      await this.#file.appendFile(lineOf(entry));
      await this.#file.datasync();
    });
    await this.#refuseWhenTaken();
    this.#entries.push(entry);
  }

  async #refuseWhenTaken(): Promise<void> {
    const own = await this.#file.stat();
    const present = await stat(this.#path).catch(unlessMissing);
    if (present?.ino === own.ino && present.dev === own.dev) return;
    throw new TreadleError(
      "run.locked",
      `journal '${this.#path}' belongs to another runner now, which took the run while this one was suspended; follow that one`,
    );
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

/** Reads the entries of a journal's text; `validBytes` is the length up to the end of the last good line. */
export function readEntries(text: string, path: string): { entries: string[]; validBytes: number } {
  const entries: string[] = [];
  let offset = 0;
  let validBytes = 0;
  while (offset < text.length) {
    const end = text.indexOf("\n", offset);
    if (end < 0) break;
    const raw = text.slice(offset, end);
    const entry = raw.slice(17);
    if (raw.slice(0, 17) !== `${checksumOf(entry)} `) throw damaged(path, entries.length + 1);
    entries.push(entry);
    offset = end + 1;
    validBytes += Buffer.byteLength(raw) + 1;
  }
  return { entries, validBytes };
}

/** `line` counts from 1. */
export function damaged(path: string, line: number): TreadleError {
  return new TreadleError(
    "journal.corrupt",
    `journal '${path}' is damaged at line ${line}; restore that file, or start a new run from a checkpoint`,
    { details: { line } },
  );
}
