import { type Readable, Transform } from "node:stream";
import type { ExecResult } from "./sandbox.ts";

/** Printed by a shell that was told what to become: without it nothing has run. */
export const beginning = "told";
const firstLine = `${beginning}\n`;

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
  /** ends what commands have left, once none runs; whoever comes meanwhile waits for that */
  readonly clear?: () => Promise<void>;
};

export class WaitingCommand<Entered> {
  readonly #options: WaitingCommandOptions<Entered>;
  #waiting: Promise<Entered | undefined> | undefined;
  #numRunning = 0;
  #clearing: Promise<void> | undefined;

  constructor(options: WaitingCommandOptions<Entered>) {
    this.#options = options;
  }

  /**
   * `run` tells it what to become, and resolves when all of it has ended. Where it had ended before it was told, another one is
   * told once.
   */
  async use(run: (entered: Entered) => Promise<Ran>): Promise<ExecResult> {
    while (this.#clearing !== undefined) await this.#clearing;
    this.#numRunning++;
    try {
      const { entered, hasWaited } = await this.#take();
      const { result, hasBegun } = await run(entered);
      const isOver = hasBegun || !hasWaited || (result.status !== "exited" && result.status !== "killed");
      return isOver ? result : (await run(await this.#options.enter())).result;
    } finally {
      this.#numRunning--;
      const { clear, mayWait, enter } = this.#options;
      if (this.#numRunning === 0 && clear !== undefined) await this.#whileNoneEnters(clear);
      if (this.#numRunning === 0 && mayWait()) this.#waiting ??= enter().catch(() => undefined);
    }
  }

  /** Runs `clear` for the one command that uses it: false where there are others. */
  async alone(clear: () => Promise<void>): Promise<boolean> {
    if (this.#numRunning > 1 || this.#clearing !== undefined) return false;
    await this.#whileNoneEnters(clear);
    return true;
  }

  async #whileNoneEnters(clear: () => Promise<void>): Promise<void> {
    this.#clearing = clear().finally(() => {
      this.#clearing = undefined;
    });
    await this.#clearing;
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
      // What comes in its place is somebody else's, and may have no end.
      if (seen.length < firstLine.length) return done();
      const rest = seen.subarray(seen.toString("utf8", 0, firstLine.length) === firstLine ? firstLine.length : 0);
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
