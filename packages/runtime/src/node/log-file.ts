import { createWriteStream, type WriteStream } from "node:fs";
import { join } from "node:path";

/** Where the lines of a worker such as `rollout/0` are kept. */
export function openLogFile(folder: string, worker: string): WriteStream {
  const file = createWriteStream(join(folder, `${worker.replace("/", "-")}.log`), { flags: "a", mode: 0o600 });
  file.on("error", () => {}); // a full disk must not end the run because of its logs
  return file;
}

/** The log files of workers that run elsewhere. */
export class LogFiles {
  readonly #folder: string;
  readonly #open = new Map<string, WriteStream>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  write(worker: string, line: string): void {
    let file = this.#open.get(worker);
    if (file === undefined) {
      file = openLogFile(this.#folder, worker);
      this.#open.set(worker, file);
    }
    file.write(`${line}\n`);
  }

  close(): void {
    for (const file of this.#open.values()) file.end();
    this.#open.clear();
  }
}
