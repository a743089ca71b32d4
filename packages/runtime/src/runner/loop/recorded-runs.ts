/**
 * The recordings of a run, read again, and whether they are what the run wrote.
 *
 * - RW1 whatever was altered, left out, put in or moved is said, with the first input that is not as it was written. An end
 *   that is missing is that of a killed runner, which is no mistake, and is said, too.
 */
import { createReadStream } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { createGunzip } from "node:zlib";
import { RecordedTurn, RecordingEnd, RecordingHeader, recordingFormat, TreadleError } from "@treadle/contracts";
import { tied } from "@treadle/core";
import { z } from "zod";
import { recordingName, segmentName } from "./recording.ts";

export type Recording = {
  readonly name: string;
  /** undefined: its runner was killed before it had written what it decided */
  readonly header: RecordingHeader | undefined;
  /** How it ends; undefined before it has been read, or when it is cut short. */
  end(): RecordingEnd["end"] | undefined;
  /** Rejects with `recording.invalid` where it is not what was written (RW1). */
  turns(): AsyncGenerator<RecordedTurn>;
};

/** The recordings of a run, one for each runner that it has had. Rejects with `recording.invalid`. */
export async function openRecordings(folder: string): Promise<Recording[]> {
  const root = join(folder, "recordings");
  const entries = await readdir(root, { withFileTypes: true }).catch(() => []);
  const names = entries.filter((each) => each.isDirectory() && recordingName.test(each.name)).map(({ name }) => name);
  const recordings = await Promise.all(names.sort().map((name) => openRecording(join(root, name), name)));
  checkSeries(root, recordings);
  return recordings;
}

/** Of one run, each once; older ones may be gone. */
function checkSeries(root: string, recordings: readonly Recording[]): void {
  const headers = recordings.flatMap(({ name, header }) => (header ? [{ name, ...header }] : []));
  for (const [at, { name, runId, startedAt }] of headers.entries()) {
    const before = headers.slice(0, at);
    const other = before.find((each) => each.runId !== runId);
    if (other)
      throw invalid(`recording '${name}' in '${root}' is of run '${runId}', and '${other.name}' of '${other.runId}'`);
    const same = before.find((each) => each.startedAt === startedAt);
    if (same) throw invalid(`recording '${name}' in '${root}' is '${same.name}' once more`);
  }
}

async function openRecording(folder: string, name: string): Promise<Recording> {
  const segments = (await readdir(folder)).filter((each) => segmentName.test(each)).sort();
  const missing = segments.findIndex((segment, at) => Number.parseInt(segment, 10) !== at);
  if (missing >= 0) throw invalid(`segment ${missing} of recording '${folder}' is missing`);
  const lines = linesOf(segments.map((segment) => join(folder, segment)));
  let first: IteratorResult<string>;
  try {
    first = await lines.next();
  } catch (cause) {
    if (!isCut(cause)) throw invalid(`recording '${folder}' is damaged before its first input`, cause);
    first = { done: true, value: undefined };
  }
  if (first.done) return { name, header: undefined, end: () => undefined, turns: noTurns };
  const told = headerOf(first.value, folder);
  if (told instanceof TreadleError) throw (await damageOf(lines, folder)) ?? told;
  const header = told;
  let end: RecordingEnd["end"] | undefined;
  let read = 0;
  let tie = tied(0, first.value);
  const isNot = (why: string) =>
    invalid(`recording '${name}' is not what its run wrote: ${why}; it was altered or damaged since`);

  function turnOf(line: string): RecordedTurn {
    const [, given, text = ""] = tiedTurn.exec(line) ?? [];
    const turn = RecordedTurn.safeParse(parseLine(text));
    if (!turn.success) throw isNot(`it differs first at input ${read}, which is none`);
    tie = tied(tie, text);
    const [atMs, , { type }] = turn.data;
    const at = `input ${read} ('${type}', ${((atMs - header.startMs) / 1000).toFixed(3)} s after the start)`;
    if (tie !== Number(given)) throw isNot(`it differs first at ${read === 1 ? "its header or " : ""}${at}`);
    return turn.data;
  }

  async function* turns(): AsyncGenerator<RecordedTurn> {
    try {
      for await (const line of lines) {
        if (end !== undefined) throw isNot(`more follows its end after input ${read}`);
        const last = RecordingEnd.safeParse(parseLine(line));
        if (last.success) {
          const { tie: given, ...said } = last.data;
          if (said.inputs !== read || given !== tied(tie, JSON.stringify(said)))
            throw isNot(`it ends after input ${read}, and has had ${said.inputs}, or another end`);
          end = said.end;
          continue;
        }
        read++;
        yield turnOf(line);
      }
    } catch (error) {
      if (isCut(error)) return; // which is said by `end`
      if (error instanceof TreadleError) throw error;
      throw invalid(`recording '${name}' is damaged after input ${read}`, error);
    }
  }
  return { name, header, end: () => end, turns };
}

/** Why no header can be read may be that bytes are damaged, which the checksum at the end of its file tells. */
async function damageOf(lines: AsyncIterable<string>, folder: string): Promise<TreadleError | undefined> {
  try {
    for await (const _ of lines);
    return undefined;
  } catch (cause) {
    return isCut(cause) ? undefined : invalid(`recording '${folder}' is damaged`, cause);
  }
}

function headerOf(line: string, folder: string): RecordingHeader | TreadleError {
  const value = parseLine(line);
  const header = RecordingHeader.safeParse(value);
  if (header.success) return header.data;
  const { format } = z.object({ format: z.unknown() }).catch({ format: undefined }).parse(value);
  return invalid(
    format !== undefined && format !== recordingFormat
      ? `recording '${folder}' is of format '${format}'; this version of Treadle reads '${recordingFormat}': replay it with the one that recorded it`
      : `recording '${folder}' does not begin with a header; record the run again with observe.record=true`,
  );
}

const tiedTurn = /^\[(\d+),(\[.*\])\]$/;

const invalid = (message: string, cause?: unknown): TreadleError =>
  new TreadleError("recording.invalid", message, cause === undefined ? {} : { cause });

/** What a killed runner leaves ends in the middle of a block. */
const isCut = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === "Z_BUF_ERROR";

async function* noTurns(): AsyncGenerator<RecordedTurn> {}

async function* linesOf(paths: readonly string[]): AsyncGenerator<string> {
  for (const [at, path] of paths.entries()) {
    const source = createReadStream(path);
    const text = source.pipe(createGunzip());
    source.on("error", (error) => text.destroy(error));
    try {
      yield* wholeLines(text);
    } catch (error) {
      const isLast = at === paths.length - 1;
      throw isCut(error) && !isLast ? invalid(`'${path}' is cut, and another segment follows`, error) : error;
    }
  }
}

/** In characters: one input, of a put of very many items at most. */
const longestLine = 2 ** 27;

/** The last line of a file that is cut may be a part, and is left out. An error comes after the lines before it. */
async function* wholeLines(chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest: string[] = [];
  let length = 0;
  for await (const chunk of chunks) {
    const [first = "", ...others] = decoder.decode(chunk, { stream: true }).split("\n");
    rest.push(first);
    length += first.length;
    if (length > longestLine) throw invalid(`a line has more than ${longestLine} characters, which no run writes`);
    for (const part of others) {
      yield rest.join("");
      rest = [part];
      length = part.length;
    }
  }
  if (length > 0) yield rest.join(""); // the file is whole, and so is its last line
}

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
