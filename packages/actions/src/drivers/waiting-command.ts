import type { Readable } from "node:stream";
import { TreadleError } from "@treadle/contracts";

/** What a waiting shell prints when it was told what to become: without it nothing has run. */
export const beginning = "told";

/**
 * What has entered a sandbox and waits to be told what to become, from one command to the next: to enter takes longer than
 * many a command.
 *
 * It waits only while nothing runs there, so that no command can touch what the next one becomes (CG4, DK5). It may have died
 * meanwhile, for lack of memory, or of processes that it needs: then another one enters when it is needed.
 */
export type WaitingCommandOptions<Entered> = {
  readonly enter: () => Promise<Entered>;
  readonly isAlive: (entered: Entered) => boolean;
  /** ends it, and frees what it has */
  readonly end: (entered: Entered) => Promise<void>;
  /** whether another one may wait now that nothing runs */
  readonly mayWait: () => boolean;
};

export class WaitingCommand<Entered> {
  readonly #options: WaitingCommandOptions<Entered>;
  #waiting: Promise<Entered | undefined> | undefined;
  #numRunning = 0;

  constructor(options: WaitingCommandOptions<Entered>) {
    this.#options = options;
  }

  /** `run` resolves when nothing of it runs any more: with nothing where it had ended before it was told. Another one is told then. */
  async use<Result>(run: (entered: Entered) => Promise<Result | undefined>): Promise<Result> {
    this.#numRunning++;
    try {
      const result = (await run(await this.#take())) ?? (await run(await this.#options.enter()));
      if (result !== undefined) return result;
      throw new TreadleError("sandbox.failed", "no command begins in the sandbox: its shell ends before it is told");
    } finally {
      this.#numRunning--;
      if (this.#numRunning === 0 && this.#options.mayWait())
        this.#waiting ??= this.#options.enter().catch(() => undefined);
    }
  }

  async drop(): Promise<void> {
    const waiting = await this.#waiting;
    this.#waiting = undefined;
    if (waiting !== undefined) await this.#options.end(waiting).catch(() => {});
  }

  async #take(): Promise<Entered> {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    const entered = await waiting;
    if (entered === undefined) return this.#options.enter();
    if (this.#options.isAlive(entered)) return entered;
    await this.#options.end(entered);
    return this.#options.enter();
  }
}

/** Leaves the rest in the stream. Empty when it ends before. */
export function firstLine(stream: Readable, timeoutMs: number): Promise<string> {
  return new Promise((resolve, reject) => {
    let seen = Buffer.alloc(0);
    const finish = (line: string): void => {
      clearTimeout(timer);
      stream.off("readable", look);
      stream.off("end", end);
      resolve(line);
    };
    const end = (): void => finish(seen.toString());
    const look = (): void => {
      for (let chunk = stream.read() as Buffer | null; chunk !== null; chunk = stream.read() as Buffer | null) {
        seen = Buffer.concat([seen, chunk]);
        const at = seen.indexOf("\n");
        if (at < 0) continue;
        const rest = seen.subarray(at + 1);
        finish(seen.toString("utf8", 0, at));
        if (rest.length > 0) stream.unshift(rest);
        return;
      }
    };
    const timer = setTimeout(() => {
      stream.off("readable", look);
      stream.off("end", end);
      reject(
        new TreadleError(
          "sandbox.failed",
          `what holds a sandbox, or is to become a command in it, said nothing within ${timeoutMs} ms`,
        ),
      );
    }, timeoutMs);
    stream.on("readable", look);
    stream.once("end", end);
    look();
  });
}
