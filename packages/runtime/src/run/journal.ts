/**
 * The journal of a run: an append-only file of one JSON record a line, each with a checksum, synced before it counts.
 *
 * J1 (ARCHITECTURE): the runner may be killed at any instant; what has been committed here is done and is never done
 * again; what has not been committed is done again from the state of the last committed step. A last line without its end
 * is what such a kill leaves and is dropped; a damaged line that has its end is `journal.corrupt`.
 *
 * Only the runner that opened the journal last writes it, whatever became of locks while another one was suspended:
 * opening takes the file from where it is before reading it, and a record counts only if the file is still in its place
 * once the record is in it. So what the earlier runner was told is committed is in what the later one reads, and from
 * then on the earlier one is told `run.locked`.
 */
import { createHash } from "node:crypto";
import { type FileHandle, open, readFile, rename, rm, stat } from "node:fs/promises";
import { TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { z } from "zod";
import { guardDisk } from "./run-folder.ts";

/** JSON has no numbers for what a diverged loss is. */
const Measured = z.union([z.number(), z.enum(["NaN", "Infinity", "-Infinity"]).transform(Number)]);

/** Component name to the file that holds its state, relative to the run folder. */
const StateFiles = z.record(z.string(), z.string());

export const JournalRecord = z.discriminatedUnion("type", [
  z.object({ type: z.literal("started"), runId: z.string(), workflow: z.string(), at: z.string() }),
  z.object({ type: z.literal("resumed"), at: z.string(), fromStep: z.int() }),
  z.object({ type: z.literal("once"), name: z.string(), value: z.unknown(), state: StateFiles }),
  z.object({
    type: z.literal("step"),
    step: z.int().nonnegative(),
    seconds: z.number(),
    metrics: z.record(z.string(), Measured),
    /** what the step trained on: the ledger that shows that nothing was lost or trained twice */
    items: z.array(z.string()),
    state: StateFiles,
  }),
  z.object({ type: z.literal("finished"), at: z.string() }),
]);
export type JournalRecord = z.infer<typeof JournalRecord>;

function unlessMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== "ENOENT") throw error;
}

const checksumOf = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 16);

export class Journal {
  readonly records: readonly JournalRecord[];
  readonly #file: FileHandle;
  readonly #path: string;
  #tail: Promise<void> = Promise.resolve();

  private constructor(path: string, file: FileHandle, records: readonly JournalRecord[]) {
    this.#path = path;
    this.#file = file;
    this.records = records;
  }

  static async open(path: string): Promise<Journal> {
    // A runner that was killed in here has left the taken file, and perhaps its copy, which is then whole.
    const taken = `${path}.taken`;
    await rename(path, taken).catch(unlessMissing);
    const bytes = (await readFile(taken).catch(unlessMissing)) ?? Buffer.alloc(0);
    try {
      const { records, validBytes } = readRecords(bytes.toString("utf8"), path);
      await guardDisk(path, () => writeFileAtomic(path, bytes.subarray(0, validBytes)));
      const file = await guardDisk(path, () => open(path, "a"));
      await rm(taken, { force: true });
      return new Journal(path, file, records);
    } catch (error) {
      await rename(taken, path).catch(unlessMissing);
      throw error;
    }
  }

  /**
   * Resolves once the record is on disk. Records are written in the order of the calls; after one that could not be
   * written, all others are refused for the same reason, since they would follow a torn line.
   */
  append(record: JournalRecord): Promise<void> {
    const body = JSON.stringify(record.type === "step" ? { ...record, metrics: writable(record.metrics) } : record);
    const written = this.#tail.then(() =>
      guardDisk(this.#path, async () => {
        await this.#file.appendFile(`${checksumOf(body)} ${body}\n`);
        await this.#file.datasync();
        await this.#refuseWhenTaken();
        (this.records as JournalRecord[]).push(record);
      }),
    );
    this.#tail = written;
    written.catch(() => {});
    return written;
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

  get lastStep(): Extract<JournalRecord, { type: "step" }> | undefined {
    return this.records.findLast((record) => record.type === "step");
  }

  /** The state files of the newest record that has any. */
  get state(): Record<string, string> {
    for (let i = this.records.length - 1; i >= 0; i--) {
      const record = this.records[i];
      if (record && (record.type === "step" || record.type === "once") && Object.keys(record.state).length > 0) {
        return record.state;
      }
    }
    return {};
  }

  once(name: string): Extract<JournalRecord, { type: "once" }> | undefined {
    return this.records.find((record) => record.type === "once" && record.name === name) as
      | Extract<JournalRecord, { type: "once" }>
      | undefined;
  }

  async close(): Promise<void> {
    await this.#tail.catch(() => {});
    await this.#file.close();
  }
}

const writable = (metrics: Readonly<Record<string, number>>): Record<string, number | string> =>
  Object.fromEntries(
    Object.entries(metrics).map(([name, value]) => [name, Number.isFinite(value) ? value : String(value)]),
  );

/** Reads the records of a journal's text; `validBytes` is the length up to the end of the last good line. */
export function readRecords(text: string, path: string): { records: JournalRecord[]; validBytes: number } {
  const records: JournalRecord[] = [];
  let offset = 0;
  let validBytes = 0;
  let line = 0;
  while (offset < text.length) {
    line++;
    const end = text.indexOf("\n", offset);
    const raw = text.slice(offset, end < 0 ? text.length : end);
    const record = end < 0 ? undefined : parseLine(raw);
    if (!record) {
      if (end < 0) break;
      throw new TreadleError(
        "journal.corrupt",
        `journal '${path}' is damaged at line ${line}; restore that file, or start a new run from a checkpoint`,
        { details: { line } },
      );
    }
    records.push(record);
    offset = end + 1;
    validBytes += Buffer.byteLength(raw) + 1;
  }
  return { records, validBytes };
}

function parseLine(raw: string): JournalRecord | undefined {
  const body = raw.slice(17);
  if (raw.slice(0, 17) !== `${checksumOf(body)} `) return undefined;
  try {
    const parsed = JournalRecord.safeParse(JSON.parse(body));
    return parsed.success ? parsed.data : undefined;
  } catch {
    return undefined;
  }
}
