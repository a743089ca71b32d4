/**
 * When a worker says that others may have a call's devices. Pure: the worker tells it what the call waits for and what was
 * answered, and does what `next` says.
 *
 * Owner of: how many waits of one call are open, how many have been answered, and what the last answer brought.
 *
 * - LW1 it is said only while something of the call waits, nothing computes, and no lock of the call keeps its devices.
 * - LW2 while that is so, it is said again after each answer: one that was on its way counts against what was said before.
 * - LW3 after an answer the call goes on first. One that brought room gets as far as it can by itself. One that brought items,
 *   which may have to be fetched, has until it computes, or `itemsGraceMs`.
 */
export const itemsGraceMs = 1000;

export type LendStep =
  | { readonly type: "over" }
  /** until something is asked or answered */
  | { readonly type: "await-change" }
  /** until nothing computes, or something is asked or answered */
  | { readonly type: "await-idle" }
  /** until the call has gone on by itself; with a limit: for so long, or until something is asked or answered */
  | { readonly type: "let-go-on"; readonly forMs?: number }
  | { readonly type: "say"; readonly numAnswered: number };

export class LendState {
  #numOpen = 0;
  #numAnswered = 0;
  #fresh: "room" | "items" | undefined;
  #isSaid = false;

  /** A wait of a call that may lend its devices: `over` is no more said until it is answered. */
  asked(): void {
    this.#numOpen++;
  }

  /** `mayLend`: it was `asked`. Every answer of the call counts, whether it held devices or not. */
  answered(brought: "room" | "items", mayLend: boolean): void {
    if (mayLend) this.#numOpen--;
    this.#numAnswered++;
    this.#fresh = brought;
    this.#isSaid = false;
  }

  get numAnswered(): number {
    return this.#numAnswered;
  }

  get isWaiting(): boolean {
    return this.#numOpen > 0;
  }

  next({ keeps, computes }: { readonly keeps: boolean; readonly computes: boolean }): LendStep {
    if (!this.isWaiting) return { type: "over" };
    if (keeps) return { type: "await-change" };
    if (computes) {
      this.#fresh = undefined;
      this.#isSaid = false;
      return { type: "await-idle" };
    }
    if (this.#fresh !== undefined) {
      const brought = this.#fresh;
      this.#fresh = undefined;
      return brought === "items" ? { type: "let-go-on", forMs: itemsGraceMs } : { type: "let-go-on" };
    }
    if (this.#isSaid) return { type: "await-change" };
    this.#isSaid = true;
    return { type: "say", numAnswered: this.#numAnswered };
  }
}
