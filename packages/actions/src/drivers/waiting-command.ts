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

  /** `run` resolves when nothing of it runs any more. */
  async use<Result>(run: (entered: Entered) => Promise<Result>): Promise<Result> {
    this.#numRunning++;
    try {
      return await run(await this.#take());
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
