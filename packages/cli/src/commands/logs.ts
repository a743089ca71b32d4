import { open, readdir, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { StringDecoder } from "node:string_decoder";
import { TreadleError } from "@treadle/contracts";
import { readLogLine } from "@treadle/observe";
import { Command } from "commander";
import { formatTime, jsonText, printable } from "../view/text.ts";
import { chooseRun } from "./choose-run.ts";

const pollMs = 300;
const pieceBytes = 2 ** 20;

type Flags = { readonly run?: string; readonly runs?: string; readonly follow?: boolean; readonly json?: boolean };

export function logsCommand(): Command {
  return new Command("logs")
    .description("prints what the workers of a run have printed, on whatever node")
    .argument("[worker]", "as rollout/0, or rollout for all of them (default: every worker)")
    .option("--run <id>", "id of the run (default: the newest)")
    .option("--runs <folder>", "where runs keep their folders")
    .option("-f, --follow", "goes on until Ctrl-C")
    .option("--json", "one JSON object a line, for machines")
    .action(async (worker: string | undefined, flags: Flags) => {
      const { logs, runId } = await chooseRun(flags.run, flags.runs);
      const read = new Map<string, LogReader>();
      const look = async (): Promise<void> => {
        for (const file of await logFiles(logs, worker)) {
          const reader = read.get(file) ?? new LogReader(join(logs, file));
          read.set(file, reader);
          for await (const line of reader.fresh())
            process.stdout.write(`${flags.json ? jsonLine(workerOf(file), line) : personLine(workerOf(file), line)}\n`);
        }
      };
      await look();
      if (read.size === 0 && !flags.follow) {
        const known = (await logFiles(logs, undefined)).map(workerOf).join(", ") || "none";
        throw new TreadleError(
          "run.incomplete",
          worker === undefined
            ? `no worker of run '${runId}' has printed anything in '${logs}'; add -f to wait for what one prints, or 'treadle report ${runId}' to see what the run did`
            : `run '${runId}' has no log of '${worker}' in '${logs}'; name one that it has: ${known}`,
        );
      }
      while (flags.follow) {
        await new Promise((resolve) => setTimeout(resolve, pollMs));
        await look();
      }
    });
}

/** `14:03:11  rollout/0      warn   slow {"seconds":3}`; what is no line of the worker's logger has neither time nor level. */
export function personLine(worker: string, line: string): string {
  const { atMs, level, text } = readLogLine(line);
  const when = atMs === undefined ? "" : formatTime(atMs);
  const how = level === undefined || level === "info" ? "" : `${printable(level)}  `;
  return `${when.padEnd(8)}  ${printable(worker).padEnd(14)} ${how}${printable(text)}`;
}

export const jsonLine = (worker: string, line: string): string => jsonText({ worker, ...readLogLine(line) });

/** `rollout-0.log` is that of `rollout/0`. */
const workerOf = (file: string): string => basename(file, ".log").replace(/-(\d+)$/, "/$1");

async function logFiles(folder: string, worker: string | undefined): Promise<string[]> {
  const files = (await readdir(folder).catch(() => [])).filter((file) => file.endsWith(".log")).sort();
  if (worker === undefined) return files;
  return files.filter((file) => workerOf(file) === worker || workerOf(file).startsWith(`${worker}/`));
}

/** Whole lines of a file that grows. */
export class LogReader {
  readonly #path: string;
  readonly #decoder = new StringDecoder("utf8");
  #readBytes = 0;
  #rest = "";

  constructor(path: string) {
    this.#path = path;
  }

  /** Those that are there now, a piece of the file at a time. */
  async *fresh(): AsyncGenerator<string> {
    const { size } = await stat(this.#path).catch(() => ({ size: 0 }));
    if (size <= this.#readBytes) return;
    await using file = await open(this.#path);
    while (this.#readBytes < size) {
      const piece = Buffer.alloc(Math.min(size - this.#readBytes, pieceBytes));
      const { bytesRead } = await file.read(piece, 0, undefined, this.#readBytes);
      if (bytesRead === 0) return; // it has been cut meanwhile
      this.#readBytes += bytesRead;
      const lines = (this.#rest + this.#decoder.write(piece.subarray(0, bytesRead))).split("\n");
      this.#rest = lines.pop() ?? "";
      yield* lines;
    }
  }
}
