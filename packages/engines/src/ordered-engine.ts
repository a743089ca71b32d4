import { TreadleError } from "@treadle/contracts";

/**
 * The order of an engine's calls, and release.
 *
 * ME1 what reads or writes parameters across several turns of the event loop runs one call after another.
 * ME3 calls on a released engine, running ones included, throw `engine.released`.
 */
export abstract class OrderedEngine {
  #released = false;
  #last: Promise<unknown> = Promise.resolve();
  readonly #calls = new Set<Promise<unknown>>();

  idle(): Promise<void> | undefined {
    if (this.#calls.size === 0) return undefined;
    return Promise.allSettled(this.#calls).then(() => this.idle());
  }

  /** Resolves when no call is left that could touch the device. */
  async release(): Promise<void> {
    this.#released = true;
    await this.idle();
  }

  async restore(): Promise<void> {
    this.#released = false;
  }

  /** ME1. A failure of one call is its caller's alone. */
  protected exclusively<T>(method: string, run: () => T | Promise<T>): Promise<T> {
    return this.computing(
      this.inTurn(() => {
        this.refuseReleased(method);
        return run();
      }),
    );
  }

  /** ME1, for what a released engine answers, too. */
  protected inTurn<T>(run: () => T | Promise<T>): Promise<T> {
    const turn = this.#last.then(run);
    this.#last = turn.catch(() => {});
    return turn;
  }

  /** Counts as computing until it has settled; whoever awaits it finds it uncounted. */
  protected async computing<T>(call: Promise<T>): Promise<T> {
    this.#calls.add(call);
    try {
      return await call;
    } finally {
      this.#calls.delete(call);
    }
  }

  /** ME3. */
  protected refuseReleased(method: string): void {
    if (!this.#released) return;
    throw new TreadleError("engine.released", `'${method}' was called on a released engine; call restore first`);
  }
}
