/**
 * Files of a run's folder, part by part, for those who look at the run from another machine.
 *
 * SF1 before a runner leaves, its followers read the rest of its files. A follower that has been silent for long is not waited for.
 */
import { open, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { ReadRunFile, RunFilePart } from "@treadle/contracts";
import { redactSecrets } from "@treadle/observe";

/** In base64 well below what a message of NATS may have. */
const maxPartBytes = 256 * 1024;
const maxJsonBytes = 16 * 2 ** 20;

const silentMs = 5000;
const waitMs = 30_000;
const lookMs = 50;
const maxReaders = 100;

/** `asked`: when each file was; `behind`: those that it has not read to the end since they are final */
type Reader = { readonly asked: Map<ReadRunFile["file"], number>; readonly behind: Set<ReadRunFile["file"]> };

export class ShownFiles {
  readonly #folder: string;
  readonly #readers = new Map<string, Reader>();
  #areFinal = false;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async read(asked: ReadRunFile): Promise<RunFilePart> {
    const reader = this.#readerOf(asked.reader);
    reader.asked.set(asked.file, performance.now());
    const areFinal = this.#areFinal;
    const part = await readRunFile(this.#folder, asked);
    const isAtEnd = part.fromByte + Buffer.byteLength(part.data, "base64") >= part.sizeBytes;
    if (areFinal && isAtEnd) reader.behind.delete(asked.file);
    return part;
  }

  /** The files are as they will stay: resolves when all who follow have read to their ends, or when too long has passed. SF1 */
  async areRead(limits = { silentMs, waitMs }): Promise<void> {
    const startedMs = performance.now();
    this.#areFinal = true;
    for (const { behind, asked } of this.#readers.values()) for (const file of asked.keys()) behind.add(file);
    for (;;) {
      const nowMs = performance.now();
      // One that reads a file no longer, such as a trace that nobody looks at, does not wait for its end.
      const follows = ({ asked, behind }: Reader) =>
        [...behind].some((file) => nowMs - (asked.get(file) as number) < limits.silentMs);
      if (nowMs - startedMs >= limits.waitMs || ![...this.#readers.values()].some(follows)) return;
      await delay(lookMs);
    }
  }

  #readerOf(name: string): Reader {
    const reader = this.#readers.get(name) ?? { asked: new Map(), behind: new Set() };
    this.#readers.delete(name);
    this.#readers.set(name, reader); // the one that was heard last is the last
    if (this.#readers.size > maxReaders) this.#readers.delete(this.#readers.keys().next().value as string);
    return reader;
  }
}

/** A file that is not there, or that is too large to be shown, has nothing. */
async function readRunFile(folder: string, asked: ReadRunFile): Promise<RunFilePart> {
  const path = join(folder, asked.file);
  const found = await stat(path).catch(() => undefined);
  if (found === undefined) return { version: "", fromByte: 0, sizeBytes: 0, data: "" };
  // What is replaced as a whole is another file each time; what grows is the same one.
  if (path.endsWith(".jsonl")) return readGrowing(path, asked, `${found.ino}`);
  const version = `${found.ino} ${found.mtimeMs} ${found.size}`;
  const fromByte = version === asked.version ? asked.fromByte : 0;
  if (found.size > maxJsonBytes) return { version, fromByte: 0, sizeBytes: 0, data: "" };
  const bytes = Buffer.from(redactSecrets(await readFile(path, "utf8")));
  const data = bytes.subarray(fromByte, fromByte + maxPartBytes).toString("base64");
  return { version, fromByte, sizeBytes: bytes.length, data };
}

async function readGrowing(path: string, asked: ReadRunFile, version: string): Promise<RunFilePart> {
  const file = await open(path, "r");
  try {
    const { size } = await file.stat();
    const fromByte = version === asked.version && asked.fromByte <= size ? asked.fromByte : 0;
    const bytes = Buffer.alloc(Math.min(maxPartBytes, size - fromByte));
    const { bytesRead } = await file.read(bytes, 0, bytes.length, fromByte);
    return { version, fromByte, sizeBytes: size, data: bytes.subarray(0, bytesRead).toString("base64") };
  } finally {
    await file.close();
  }
}
