/**
 * The history of a pool: a file of lines beside the folders of its runs, which `treadle trace --pool` draws. It holds the newest
 * `maxBytes` to twice that: when the file is full it becomes the old one, in place of the one before.
 *
 * - PH1 it costs no run anything: lines are written in the background, and a disk that is full or slow costs lines alone: the
 *   history says that some are lost, which ends all that was open for its reader, and then what still is so.
 * - PH2 each of both files can be read without the other: a new one begins with all that is so at that time.
 */
import { appendFile, mkdir, readdir, rename, stat } from "node:fs/promises";
import { join } from "node:path";
import type { PoolEntry } from "@treadle/contracts";
import { type DevicePoolState, PoolHistory } from "@treadle/core";
import { traceNow } from "@treadle/observe";

const ending = ".jsonl";
const oldEnding = ".old.jsonl";

/** The old file, and the one that is written; either may be missing. */
export const poolHistoryFiles = (folder: string, name: string): readonly [string, string] => [
  join(folder, `${name}${oldEnding}`),
  join(folder, `${name}${ending}`),
];

export type KeptPoolHistory = {
  readonly name: string;
  /** in the order in which they were written */
  readonly files: readonly string[];
};

/** Those in a folder of runs, the one that was written last at the end. Only plain files count: others may be endless, or nothing. */
export async function listPoolHistories(folder: string): Promise<KeptPoolHistory[]> {
  const names = new Set((await readdir(folder).catch(() => [])).flatMap((file) => nameOf(file) ?? []));
  const found = await Promise.all(
    [...names].map(async (name) => {
      const dated = await Promise.all(
        poolHistoryFiles(folder, name).map(async (file) => ({ file, status: await stat(file).catch(() => undefined) })),
      );
      const plain = dated.flatMap(({ file, status }) => (status?.isFile() ? [{ file, ms: status.mtimeMs }] : []));
      return { name, files: plain.map(({ file }) => file), ms: Math.max(...plain.map(({ ms }) => ms)) };
    }),
  );
  return found
    .filter(({ files }) => files.length > 0)
    .sort((a, b) => a.ms - b.ms)
    .map(({ name, files }) => ({ name, files }));
}

function nameOf(file: string): string | undefined {
  const own = [oldEnding, ending].find((each) => file.endsWith(each));
  return own !== undefined && file.startsWith("pool-") ? file.slice(0, -own.length) : undefined;
}

/** Sorts by time: `pool-20260131-142530-4f2a91c7`. */
export function newPoolHistoryName(): string {
  const stamp = new Date().toISOString().replace(/[-:]/g, "").replace("T", "-").slice(0, 15);
  return `pool-${stamp}-${crypto.randomUUID().slice(0, 8)}`;
}

export type PoolHistoryFileOptions = {
  readonly folder: string;
  readonly name: string;
  readonly maxBytes?: number | undefined;
};

export class PoolHistoryFile {
  readonly name: string;
  readonly #folder: string;
  readonly #maxBytes: number;
  readonly #history = new PoolHistory();
  /** of runs that have one */
  readonly #runIds = new Map<string, string>();
  #lines: string[] = [];
  /** in the file, with what is on its way there */
  #sizeBytes = 0;
  /** not in the file yet */
  #pendingBytes = 0;
  /** files that were begun */
  #numFiles = 1;
  /** lines, since more wait to be written than may, or since they could not be written */
  #hasLost = false;
  /** the file may end within a line */
  #endsHalf = false;
  #writing: Promise<void>;

  constructor({ folder, name, maxBytes = 8 * 2 ** 20 }: PoolHistoryFileOptions) {
    [this.name, this.#folder, this.#maxBytes] = [name, folder, maxBytes];
    this.#writing = mkdir(folder, { recursive: true, mode: 0o700 }).then(
      () => {},
      () => {},
    );
  }

  /** After each input that may have changed something. */
  look(state: DevicePoolState, nowMs: number): void {
    if (this.#hasLost && this.#pendingBytes <= this.#maxBytes) {
      this.#hasLost = false;
      if (this.#endsHalf) this.#addLine("\n");
      this.#endsHalf = false;
      this.#add([{ type: "lost", atMs: traceNow() }]); // PH1
      this.#sayAll();
    }
    this.#add(this.#history.changes(state, nowMs, traceNow()));
    if (this.#sizeBytes < this.#maxBytes) return;
    void this.flush();
    const [old, newest] = poolHistoryFiles(this.#folder, this.name);
    this.#writing = this.#writing.then(() => rename(newest, old)).catch(() => {});
    this.#sizeBytes = 0;
    this.#numFiles++;
    this.#sayAll(); // PH2
    this.#add(this.#history.changes(state, nowMs, traceNow()).filter(({ type }) => type !== "decided"));
  }

  /** Which folder of runs has the run. */
  isRun(run: string, runId: string): void {
    if (this.#runIds.get(run) === runId) return;
    this.#runIds.set(run, runId);
    this.#add([{ type: "run", atMs: traceNow(), run, runId }]);
  }

  /** In the background (PH1). Resolves when it is written, or cannot be. */
  flush(): Promise<void> {
    if (this.#lines.length === 0) return this.#writing;
    const text = this.#lines.join("");
    this.#lines = [];
    const [, newest] = poolHistoryFiles(this.#folder, this.name);
    const file = this.#numFiles;
    this.#writing = this.#writing
      .then(() => appendFile(newest, text, { mode: 0o600 }))
      .catch(() => {
        [this.#hasLost, this.#endsHalf] = [true, true];
        // A disk that stays full must not make room for what is never written.
        if (file === this.#numFiles) this.#sizeBytes -= text.length;
      })
      .finally(() => {
        this.#pendingBytes -= text.length;
      });
    return this.#writing;
  }

  async close(): Promise<void> {
    await this.flush();
  }

  /** What is so is said again from here on. */
  #sayAll(): void {
    this.#history.forget();
    this.#add([...this.#runIds].map(([run, runId]) => ({ type: "run", atMs: traceNow(), run, runId })));
  }

  #add(entries: readonly PoolEntry[]): void {
    for (const entry of entries) {
      const line = `${JSON.stringify(entry)}\n`;
      if (this.#pendingBytes > this.#maxBytes) {
        this.#hasLost = true; // PH1
        return;
      }
      this.#addLine(line);
    }
  }

  #addLine(line: string): void {
    this.#lines.push(line);
    this.#sizeBytes += line.length;
    this.#pendingBytes += line.length;
  }
}
