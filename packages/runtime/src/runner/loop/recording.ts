/**
 * The recording of a run: what went into `RunnerState`, when, and a digest of what came out, in compressed segments
 * below `recordings/<n>` of the run's folder. A runner that resumes the run begins the next one.
 *
 * Read again by `recorded-runs.ts`.
 *
 * It never fails a run: where the disk is full or too slow, or the limit is reached, it ends with a warning.
 */
import { createWriteStream, mkdirSync, readdirSync, type WriteStream } from "node:fs";
import { join } from "node:path";
import { finished } from "node:stream/promises";
import { constants, createGzip, type Gzip } from "node:zlib";
import { type RecordingEnd, type RecordingHeader, recordingFormat } from "@treadle/contracts";
import {
  digestOf,
  digestOfRefusal,
  type RunnerEffect,
  type RunnerInput,
  type RunnerOptions,
  recordInput,
  tied,
} from "@treadle/core";

/** Before compression, so that a damaged segment costs little. */
const segmentBytes = 16 * 2 ** 20;
/** What a killed runner may lose. */
const flushMs = 1000;
/** So much waits for the disk at most. */
const maxPendingBytes = 64 * 2 ** 20;
const mebibyte = 2 ** 20;

/** Of the folder of one runner's recording, and of a segment in it. */
export const recordingName = /^\d{4,}$/;
export const segmentName = /^\d{5,}\.jsonl\.gz$/;

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
  #numInputs = 0;
  #tie: number;

  constructor(options: RecordingOptions) {
    this.#options = options;
    const root = join(options.folder, "recordings");
    mkdirSync(root, { recursive: true, mode: 0o700 });
    const before = readdirSync(root).filter((name) => recordingName.test(name));
    const number = Math.max(-1, ...before.map(Number)) + 1; // after the newest, whatever else there is or was
    this.#folder = join(root, String(number).padStart(4, "0"));
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
    this.#tie = tied(0, JSON.stringify(header));
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
    const turn = `[${nowMs},${digest},${JSON.stringify(recordInput(input))}]`;
    this.#tie = tied(this.#tie, turn);
    this.#line(`[${this.#tie},${turn}]`);
    this.#numInputs++;
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
    const end = { end: why, inputs: this.#numInputs };
    this.#line(JSON.stringify({ ...end, tie: tied(this.#tie, JSON.stringify(end)) } satisfies RecordingEnd));
    segment.gzip.end(`${this.#lines.join("\n")}\n`);
    this.#lines = [];
    await segment.closed;
  }
}
