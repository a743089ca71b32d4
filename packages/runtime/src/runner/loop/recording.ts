/**
 * The recording of a run: what went into `RunnerState`, when, and a digest of what came out, in compressed segments
 * below `recordings/<n>` of the run's folder. A runner that resumes the run begins the next one.
 *
 * It never fails a run: where the disk is full or too slow, or the limit is reached, it ends with a warning.
 */
import { createReadStream, createWriteStream, mkdirSync, readdirSync, type WriteStream } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { finished } from "node:stream/promises";
import { constants, createGunzip, createGzip, type Gzip } from "node:zlib";
import { RecordedTurn, RecordingEnd, RecordingHeader, recordingFormat, TreadleError } from "@treadle/contracts";
import {
  digestOf,
  digestOfRefusal,
  type RunnerEffect,
  type RunnerInput,
  type RunnerOptions,
  recordInput,
} from "@treadle/core";
import { z } from "zod";

/** Before compression, so that a damaged segment costs little. */
const segmentBytes = 16 * 2 ** 20;
/** What a killed runner may lose. */
const flushMs = 1000;
/** So much waits for the disk at most. */
const maxPendingBytes = 64 * 2 ** 20;
const mebibyte = 2 ** 20;

type Segment = { readonly gzip: Gzip; readonly file: WriteStream; readonly closed: Promise<void>; bytes: number };

export type RecordingOptions = {
  /** of the run */
  readonly folder: string;
  readonly maxMiB: number;
  readonly header: Pick<RecordingHeader, "runId" | "startMs"> & { readonly options: RunnerOptions };
  readonly warn: (line: string) => void;
};

export class RecordingWriter {
  readonly #folder: string;
  readonly #options: RecordingOptions;
  readonly #flush: NodeJS.Timeout;
  #segment: Segment | undefined;
  #numSegments = 0;
  #writtenBytes = 0;
  #lines: string[] = [];

  constructor(options: RecordingOptions) {
    this.#options = options;
    const root = join(options.folder, "recordings");
    mkdirSync(root, { recursive: true, mode: 0o700 });
    this.#folder = join(root, String(readdirSync(root).length).padStart(4, "0"));
    mkdirSync(this.#folder, { mode: 0o700 });
    this.#segment = this.#begin();
    const { runId, startMs } = options.header;
    const { supervision, rejoinMs, placeWaitMs, maxStaleness, runsAhead, isLeased, ...others } = options.header.options;
    others satisfies Record<string, never>; // or what it decides by would be missing when it decides again
    const header: RecordingHeader = {
      format: recordingFormat,
      runId,
      startedAt: new Date().toISOString(),
      startMs,
      options: { supervision, rejoinMs, placeWaitMs, maxStaleness, runsAhead, isLeased },
    };
    this.#line(JSON.stringify(header));
    this.#flush = setInterval(() => this.#write(true), flushMs);
    this.#flush.unref();
  }

  handled(input: RunnerInput, nowMs: number, effects: readonly RunnerEffect[]): void {
    if (this.#segment !== undefined) this.#turn(input, nowMs, digestOf(effects));
  }

  refused(input: RunnerInput, nowMs: number, error: unknown): void {
    if (this.#segment !== undefined) this.#turn(input, nowMs, digestOfRefusal(error));
  }

  async close(): Promise<void> {
    clearInterval(this.#flush);
    await this.#end("closed");
  }

  #turn(input: RunnerInput, nowMs: number, digest: number): void {
    this.#line(`[${nowMs},${digest},${JSON.stringify(recordInput(input))}]`);
    if (this.#lines.length >= 512) this.#write(false);
  }

  #line(text: string): void {
    this.#lines.push(text);
  }

  #write(isDue: boolean): void {
    const segment = this.#segment;
    if (segment === undefined) return;
    const text = this.#lines.length === 0 ? "" : `${this.#lines.join("\n")}\n`;
    this.#lines = [];
    segment.bytes += text.length;
    if (text !== "") segment.gzip.write(text);
    if (isDue) segment.gzip.flush(constants.Z_SYNC_FLUSH);
    if (segment.gzip.writableLength > maxPendingBytes) this.#stop("the disk is too slow");
    else if (this.#writtenBytes + segment.file.bytesWritten > this.#options.maxMiB * mebibyte)
      this.#stop(`it has grown to observe.recordMaxMiB (${this.#options.maxMiB} MiB)`);
    else if (segment.bytes > segmentBytes) {
      segment.gzip.end();
      this.#segment = this.#begin();
      void segment.closed.then(() => {
        this.#writtenBytes += segment.file.bytesWritten;
      });
    }
  }

  #begin(): Segment {
    const path = join(this.#folder, `${String(this.#numSegments++).padStart(5, "0")}.jsonl.gz`);
    const file = createWriteStream(path, { mode: 0o600 });
    const gzip = createGzip({ level: constants.Z_BEST_SPEED });
    gzip.pipe(file);
    const closed = finished(file).catch((error: Error) => {
      if (this.#segment?.file === file) this.#stop(error.message);
    });
    return { gzip, file, closed, bytes: 0 };
  }

  #stop(why: string): void {
    this.#options.warn(`the recording ends here: ${why}; the run goes on`);
    void this.#end("limit");
  }

  async #end(why: RecordingEnd["end"]): Promise<void> {
    const segment = this.#segment;
    if (segment === undefined) return;
    this.#segment = undefined;
    this.#line(JSON.stringify({ end: why } satisfies RecordingEnd));
    segment.gzip.end(`${this.#lines.join("\n")}\n`);
    this.#lines = [];
    await segment.closed;
  }
}

export type Recording = {
  readonly name: string;
  /** undefined: its runner was killed before it had written what it decided */
  readonly header: RecordingHeader | undefined;
  /** How it ends; undefined before it has been read, or when it is cut short. */
  end(): RecordingEnd["end"] | undefined;
  /** Rejects with `recording.invalid` where it is damaged. */
  turns(): AsyncGenerator<RecordedTurn>;
};

/** The recordings of a run, one for each runner that it has had. Rejects with `recording.invalid`. */
export async function openRecordings(folder: string): Promise<Recording[]> {
  const root = join(folder, "recordings");
  const names = (await readdir(root).catch(() => [])).sort();
  return Promise.all(names.map((name) => openRecording(join(root, name), name)));
}

async function openRecording(folder: string, name: string): Promise<Recording> {
  const segments = (await readdir(folder)).sort();
  const lines = linesOf(segments.map((segment) => join(folder, segment)));
  const first = await lines.next().catch((error: NodeJS.ErrnoException) => ({ done: isCut(error), value: "" }));
  if (first.done && segments.length <= 1) return { name, header: undefined, end: () => undefined, turns: noTurns };
  const value = first.done ? undefined : parseLine(first.value);
  const header = RecordingHeader.safeParse(value);
  if (!header.success) {
    const { format } = z.object({ format: z.unknown() }).catch({ format: undefined }).parse(value);
    throw new TreadleError(
      "recording.invalid",
      format !== undefined && format !== recordingFormat
        ? `recording '${folder}' is of format '${format}'; this version of Treadle reads '${recordingFormat}': replay it with the one that recorded it`
        : `recording '${folder}' does not begin with a header; record the run again with observe.record=true`,
    );
  }
  let end: RecordingEnd["end"] | undefined;
  let read = 0;
  async function* turns(): AsyncGenerator<RecordedTurn> {
    try {
      for await (const line of lines) {
        read++;
        const value = parseLine(line);
        const last = RecordingEnd.safeParse(value);
        if (last.success) {
          end = last.data.end;
          return;
        }
        const turn = RecordedTurn.safeParse(value);
        if (!turn.success)
          throw new TreadleError("recording.invalid", `input ${read} of recording '${name}' is no input`);
        yield turn.data;
      }
    } catch (error) {
      if (isCut(error as NodeJS.ErrnoException)) return; // which is said by `end`
      if (error instanceof TreadleError) throw error;
      throw new TreadleError("recording.invalid", `recording '${name}' is damaged after input ${read}`, {
        cause: error,
      });
    }
  }
  return { name, header: header.data, end: () => end, turns };
}

/** What a killed runner leaves ends in the middle of a block. */
const isCut = ({ code }: NodeJS.ErrnoException): boolean => code === "Z_BUF_ERROR";

async function* noTurns(): AsyncGenerator<RecordedTurn> {}

async function* linesOf(paths: readonly string[]): AsyncGenerator<string> {
  for (const path of paths) {
    const source = createReadStream(path);
    const text = source.pipe(createGunzip());
    source.on("error", (error) => text.destroy(error));
    yield* wholeLines(text);
  }
}

/** Those that end: the last one of a file that is cut may be a part. An error comes after the lines before it. */
async function* wholeLines(chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunks) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop() as string;
    yield* parts;
  }
}

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
