const nothing = { sumMs: 0, num: 0 };

/** What it takes to load and to release a worker, where either may happen several times before anybody asks. */
export class SwapTimes {
  #seen = { onloadMs: nothing, offloadMs: nothing };

  /** One that fails takes no time. */
  async time(kind: "onloadMs" | "offloadMs", swap: () => Promise<void>): Promise<void> {
    const startedMs = performance.now();
    await swap();
    const { sumMs, num } = this.#seen[kind];
    this.#seen[kind] = { sumMs: sumMs + performance.now() - startedMs, num: num + 1 };
  }

  /** 0 of what has not happened */
  get means(): { readonly onloadMs: number; readonly offloadMs: number } {
    const meanOf = ({ sumMs, num }: typeof nothing): number => (num === 0 ? 0 : sumMs / num);
    return { onloadMs: meanOf(this.#seen.onloadMs), offloadMs: meanOf(this.#seen.offloadMs) };
  }

  forget(): void {
    this.#seen = { onloadMs: nothing, offloadMs: nothing };
  }
}
