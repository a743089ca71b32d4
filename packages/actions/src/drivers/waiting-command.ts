import { type Readable, Transform } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import type { ExecResult } from "./sandbox.ts";

/** The first line of a shell that was told what to become: without it nothing has run. */
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

  /**
   * `run` tells it what to become, and resolves when all of it has ended. Where it had ended before it was told, another one is
   * told once.
   */
  async use(run: (entered: Entered) => Promise<Ran>): Promise<ExecResult> {
    this.#numRunning++;
    try {
      const { entered, hasWaited } = await this.#take();
      const { result, hasBegun } = await run(entered);
      const isOver = hasBegun || !hasWaited || (result.status !== "exited" && result.status !== "killed");
      return isOver ? result : (await run(await this.#options.enter())).result;
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

  async #take(): Promise<{ readonly entered: Entered; readonly hasWaited: boolean }> {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    const entered = await waiting;
    if (entered !== undefined) {
      if (this.#options.isAlive(entered)) return { entered, hasWaited: true };
      await this.#options.end(entered);
    }
    return { entered: await this.#options.enter(), hasWaited: false };
  }
}

/** What a shell prints that was told what to become, without its first line, by which it says so. */
export function toldOutput(printed: Readable): { readonly stdout: Readable; readonly begins: Promise<boolean> } {
  let seen: Buffer | undefined = Buffer.alloc(0);
  let say: (begins: boolean) => void = () => {};
  const begins = new Promise<boolean>((resolve) => {
    say = resolve;
  });
  const stdout = new Transform({
    transform(chunk: Buffer, _, done) {
      if (seen === undefined) return done(null, chunk);
      seen = Buffer.concat([seen, chunk]);
      const at = seen.indexOf("\n");
      if (at < 0) return done();
      const rest = seen.subarray(seen.toString("utf8", 0, at) === beginning ? at + 1 : 0);
      seen = undefined;
      say(true);
      done(null, rest);
    },
    flush: (done) => done(null, seen),
  });
  stdout.once("close", () => {
    say(false);
    printed.destroy();
  });
  printed.once("close", () => stdout.end());
  printed.on("error", () => {}).pipe(stdout);
  return { stdout, begins };
}

/** Of a command that was told to something that had entered. */
export type Ran = { readonly result: ExecResult; readonly hasBegun: boolean };

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
          `a shell in the sandbox said nothing within ${timeoutMs} ms; the machine may have too much to do`,
        ),
      );
    }, timeoutMs);
    stream.on("readable", look);
    stream.once("end", end);
    look();
  });
}
