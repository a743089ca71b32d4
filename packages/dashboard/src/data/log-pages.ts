/** What workers have printed, a page of it at a time, from the end backwards or onwards from where a reader is. */
import { open, readdir, stat } from "node:fs/promises";
import { basename, join } from "node:path";

import { readLogLine } from "@treadle/observe";
import type { LoggedWorker, LogLine, LogPage } from "../view/wire.ts";

const pageBytes = 128 * 1024;
const maxLine = 8000;

/** Worker names, as `rollout/0`, with the size of what each has printed. */
export async function loggedWorkers(folder: string): Promise<LoggedWorker[]> {
  const files = (await readdir(join(folder, "logs")).catch(() => [])).filter((name) => name.endsWith(".log")).sort();
  return Promise.all(
    files.map(async (file) => ({
      worker: basename(file, ".log").replace(/-(\d+)$/, "/$1"),
      sizeBytes: (await stat(join(folder, "logs", file)).catch(() => undefined))?.size ?? 0,
    })),
  );
}

/** Undefined for a worker that has no log. `after`: from there on; else the last page before `before`, or the end. */
export async function logPage(
  folder: string,
  worker: string,
  { after, before }: { after?: number | undefined; before?: number | undefined },
): Promise<LogPage | undefined> {
  const known = await loggedWorkers(folder);
  const found = known.find((each) => each.worker === worker);
  if (found === undefined) return undefined;
  const to =
    after === undefined
      ? Math.min(before ?? found.sizeBytes, found.sizeBytes)
      : Math.min(found.sizeBytes, after + pageBytes);
  const from = after ?? Math.max(0, to - pageBytes);
  if (to <= from) return { lines: [], fromByte: from, toByte: Math.max(from, Math.min(to, found.sizeBytes)) };
  const file = await open(join(folder, "logs", `${worker.replace(/\/(\d+)$/, "-$1")}.log`), "r");
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(to - from), 0, to - from, from);
    const bytes = buffer.subarray(0, bytesRead);
    // Whole lines only; the first of a page in the middle belongs to the page before.
    const first = from === 0 || after !== undefined ? 0 : bytes.indexOf(10) + 1;
    const last = bytes.lastIndexOf(10) + 1;
    const text = bytes.toString("utf8", first, Math.max(first, last));
    return {
      lines: text.split("\n").filter(Boolean).map(logLine),
      fromByte: from + first,
      toByte: from + Math.max(first, last),
    };
  } finally {
    await file.close();
  }
}

function logLine(line: string): LogLine {
  const { text, ...rest } = readLogLine(line);
  return { ...rest, text: text.slice(0, maxLine) };
}
