import { mkdirSync } from "node:fs";
import { StringDecoder } from "node:string_decoder";
import { type DestinationStream, type Level, type Logger, pino } from "pino";
import { createStream, type RotatingFileStream } from "rotating-file-stream";
import { z } from "zod";
import { redactSecrets } from "./redact.ts";

export type { Logger } from "pino";

export type LogLevel = Level | "silent";

/**
 * A logger that writes JSON lines with the worker's name, secrets redacted wherever they stand. Without a destination
 * lines go to standard output synchronously, so that a worker that dies loses none of them; the node agent reads them
 * from there.
 */
export function createLogger(options: {
  worker: string;
  level?: LogLevel | undefined;
  destination?: DestinationStream | undefined;
}): Logger {
  return pino(
    {
      level: options.level ?? "info",
      base: { worker: options.worker },
      hooks: { streamWrite: redactSecrets },
    },
    options.destination ?? pino.destination({ dest: 1, sync: true }),
  );
}

const LoggedLine = z.looseObject({ level: z.number(), msg: z.string().optional() });

/** What a line on a worker's standard output or error says: one of the logger's, or anything a library printed. */
export function parseLogLine(line: string, otherwise: Level = "info"): { level: Level; message: string } {
  if (line.startsWith("{")) {
    try {
      const logged = LoggedLine.safeParse(JSON.parse(line));
      const level = logged.success ? pino.levels.labels[logged.data.level] : undefined;
      if (logged.success && level !== undefined) return { level: level as Level, message: logged.data.msg ?? line };
    } catch {
      // a line that only looks like JSON is shown as it is
    }
  }
  return { level: otherwise, message: line };
}

/** A line of a worker's log file, for a person: when, how bad, and what, with the facts that were logged beside it. */
export function readLogLine(line: string): { atMs?: number; level?: string; text: string } {
  if (!line.startsWith("{")) return { text: line };
  try {
    const { time, level, msg, ...rest } = JSON.parse(line) as Record<string, unknown>;
    if (typeof msg !== "string") return { text: line };
    const { pid: _, hostname: __, name: ___, worker: ____, ...facts } = rest;
    const more = Object.keys(facts).length > 0 ? ` ${JSON.stringify(facts)}` : "";
    const label = typeof level === "number" ? pino.levels.labels[level] : typeof level === "string" ? level : undefined;
    return {
      ...(typeof time === "number" ? { atMs: time } : {}),
      ...(label === undefined ? {} : { level: label }),
      text: `${msg}${more}`,
    };
  } catch {
    return { text: line };
  }
}

/**
 * The last lines of a stream, for the report of a failure (S1). Memory is bounded by `lines × maxLineLength`: longer
 * lines are cut and say by how much. A lone carriage return starts its line again, as a terminal shows it.
 */
export class LogTail {
  readonly #numLines: number;
  readonly #maxLineLength: number;
  readonly #decoder = new StringDecoder("utf8");
  readonly #lines: string[] = [];
  #partial = "";
  #cut = 0;

  constructor(options: { lines?: number | undefined; maxLineLength?: number | undefined } = {}) {
    this.#numLines = Math.max(1, options.lines ?? 40);
    this.#maxLineLength = Math.max(1, options.maxLineLength ?? 2000);
  }

  /** Feeds the next bytes; returns the lines that they complete. */
  write(chunk: Uint8Array | string): string[] {
    const text = typeof chunk === "string" ? chunk : this.#decoder.write(Buffer.from(chunk));
    const pieces = text.split("\n");
    const rest = pieces.pop() ?? "";
    const completed: string[] = [];
    for (const piece of pieces) {
      this.#extend(piece);
      completed.push(this.#finishLine());
    }
    this.#extend(rest);
    return completed;
  }

  /** The last lines, oldest first, with secrets redacted; an unfinished last line is included. */
  lines(): string[] {
    const all = this.#partial === "" ? this.#lines : [...this.#lines, this.#shown()];
    return all.slice(-this.#numLines);
  }

  #extend(piece: string): void {
    const room = this.#maxLineLength - this.#partial.length;
    this.#partial += piece.slice(0, room);
    this.#cut += Math.max(0, piece.length - room);
  }

  #finishLine(): string {
    const line = this.#shown();
    this.#partial = "";
    this.#cut = 0;
    this.#lines.push(line);
    if (this.#lines.length > this.#numLines) this.#lines.shift();
    return line;
  }

  #shown(): string {
    const line = this.#partial.replace(/\r+$/, "");
    const text = redactSecrets(line.slice(line.lastIndexOf("\r") + 1));
    return this.#cut > 0 ? `${text}… (${this.#cut} more characters)` : text;
  }
}

/**
 * A worker's log file in `folder`, `rollout/0` as `rollout-0.log`. Past `maxBytes` it is renamed to `….1.log` and begun
 * again, so a worker never keeps more than `(keep + 1) × maxBytes` on disk.
 */
export function openWorkerLog(
  folder: string,
  worker: string,
  options: { maxBytes?: number | undefined; keep?: number | undefined } = {},
): RotatingFileStream {
  mkdirSync(folder, { recursive: true });
  const name = worker.replace(/[^\w.-]+/g, "-");
  const maxBytes = Math.max(1024, Math.floor(options.maxBytes ?? 16 * 1024 * 1024));
  return createStream((index) => (index ? `${name}.${Number(index)}.log` : `${name}.log`), {
    path: folder,
    size: `${maxBytes}B`,
    rotate: Math.max(1, options.keep ?? 1),
  });
}
