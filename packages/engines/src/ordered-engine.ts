import { ReleasableTag, TreadleError } from "@treadle/contracts";

/** What a call needs loaded; any other needs all. */
const needs: Readonly<Record<string, readonly ReleasableTag[]>> = {
  generate: ["weights", "cache"],
  logprobs: ["weights"],
  values: ["weights"],
  loadWeights: ["weights"],
  forwardBackward: ["weights", "optimiser"],
  optimStep: ["weights", "optimiser"],
};

/**
 * The order of an engine's calls, and release.
 *
 * ME1 what reads or writes parameters across several turns of the event loop runs one call after another.
 * ME3 calls on a released engine, running ones included, throw `engine.released`: those that need a tag which is released.
 */
export abstract class OrderedEngine {
  readonly #released = new Set<ReleasableTag>();
  #last: Promise<unknown> = Promise.resolve();
  readonly #calls = new Set<Promise<unknown>>();
  #begins: () => void = () => {};

  onComputing(begins: () => void): void {
    this.#begins = begins;
  }

  idle(): Promise<void> | undefined {
    if (this.#calls.size === 0) return undefined;
    return Promise.allSettled(this.#calls).then(() => this.idle());
  }

  /** Resolves when no call is left that could touch the device. */
  async release(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    for (const tag of tags) this.#released.add(tag);
    await this.idle();
  }

  async restore(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    for (const tag of tags) this.#released.delete(tag);
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
    this.#begins();
    try {
      return await call;
    } finally {
      this.#calls.delete(call);
    }
  }

  /** ME3. */
  protected refuseReleased(method: string): void {
    const released = (needs[method] ?? ReleasableTag.options).filter((tag) => this.#released.has(tag));
    if (released.length === 0) return;
    const what = this.#released.size < ReleasableTag.options.length ? `, whose ${released.join(" and ")} it needs` : "";
    throw new TreadleError("engine.released", `'${method}' was called on a released engine${what}; call restore first`);
  }
}
