import { closeSync, fstatSync, ftruncateSync, mkdirSync, openSync, readFileSync, readSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";

/** One step's line of a metrics file: flat, so that any tool that reads JSON lines can plot it. */
export type MetricsRow = { readonly step: number; readonly [name: string]: number };

const nonFinite = z.literal(["NaN", "Infinity", "-Infinity"]);
const MetricsLine = z
  .object({ step: z.int().nonnegative() })
  .catchall(z.union([z.number(), nonFinite.transform(Number), z.null().transform(() => Number.NaN)]));

/**
 * Appends one JSON object a step. A row is in the operating system's hands when `write` returns, so it survives the
 * death of the process, though not that of the machine. NaN and infinities, which JSON lacks, are written as strings.
 * Opening a file cuts off a row that a killed writer left half written.
 */
export class MetricsWriter implements Disposable {
  readonly path: string;
  #descriptor: number | undefined;

  constructor(path: string) {
    this.path = path;
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    this.#descriptor = openSync(path, "a+", 0o600);
    cutTornLine(this.#descriptor);
  }

  write(step: number, values: Readonly<Record<string, number>>): void {
    if (this.#descriptor === undefined) return;
    const line = JSON.stringify({ ...values, step }, (_, value: unknown) =>
      typeof value === "number" && !Number.isFinite(value) ? String(value) : value,
    );
    try {
      writeFully(this.#descriptor, `${line}\n`);
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code !== "ENOSPC") throw cause;
      throw new TreadleError("disk.full", `no space left for metrics '${this.path}'; free some and resume the run`, {
        cause,
      });
    }
  }

  close(): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
    this.#descriptor = undefined;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/**
 * Reads a metrics file, ascending by step. A step that a resumed run wrote again counts once, as last written; a last
 * line that is half written is left out. Any other line that does not parse is an error that names it.
 */
export function readMetrics(path: string): MetricsRow[] {
  const lines = readFileSync(path, "utf8").split("\n");
  const torn = lines.pop() ?? "";
  if (torn !== "" && isWhole(torn)) lines.push(torn);
  const rows = new Map<number, MetricsRow>();
  for (const [index, line] of lines.entries()) {
    if (line === "") continue;
    const parsed = MetricsLine.safeParse(parseJson(line));
    if (!parsed.success) {
      throw new TreadleError(
        "journal.corrupt",
        `line ${index + 1} of '${path}' is not a row of metrics; remove the file; the run's next resume rebuilds it from its journal`,
        {
          cause: parsed.error,
        },
      );
    }
    rows.set(parsed.data.step, parsed.data as MetricsRow);
  }
  return [...rows.values()].sort((a, b) => a.step - b.step);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isWhole(line: string): boolean {
  return parseJson(line) !== undefined;
}

function writeFully(descriptor: number, text: string): void {
  const bytes = Buffer.from(text);
  for (let done = 0; done < bytes.length; ) done += writeSync(descriptor, bytes, done);
}

/** Truncates to the end of the last whole line; looks back a megabyte at most. */
function cutTornLine(descriptor: number): void {
  const { size } = fstatSync(descriptor);
  if (size === 0) return;
  const tail = Buffer.alloc(Math.min(size, 1 << 20));
  readSync(descriptor, tail, 0, tail.length, size - tail.length);
  const newline = tail.lastIndexOf(0x0a);
  if (newline < tail.length - 1) ftruncateSync(descriptor, size - (tail.length - 1 - newline));
}
