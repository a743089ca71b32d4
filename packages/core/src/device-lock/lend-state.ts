/**
 * When a worker says that others may have a call's devices. Pure: the worker tells it what the call waits for and what was
 * answered, asks it on what terms to wait, and does what `next` says.
 *
 * Owner of: how many waits of one call are open, how many have been answered, what the last answer brought, and how many items
 * are worked on beside the waits.
 *
 * - LW1 it is said only while something of the call waits, nothing computes, and no lock of the call keeps its devices.
 * - LW2 while that is so, it is said again after each answer: one that was on its way counts against what was said before.
 * - LW3 after its grant and after an answer the call goes on first, and what it asks for meanwhile it waits for with its devices:
 *   it may have begun what sets the engine to work a moment later. It gets as far as it can by itself. With items that may have to
 *   be fetched it has until it computes, or `itemsGraceMs`; with items of a stream, of which each is worked on beside the others,
 *   until all are committed, or that time after something has computed.
 */
import type { WaitTerms } from "@treadle/contracts";

export const itemsGraceMs = 1000;

export type LendStep =
  | { readonly type: "over" }
  /** until something is asked or answered */
  | { readonly type: "await-change" }
  /** until nothing computes, or something is asked or answered */
  | { readonly type: "await-idle" }
  /** until the call has gone on by itself; with a limit: until something computes, for so long, or until something is answered */
  | { readonly type: "let-go-on"; readonly forMs?: number }
  | { readonly type: "say"; readonly numAnswered: number };

type Look = { readonly keeps: boolean; readonly computes: boolean };

export class LendState {
  #numOpen = 0;
  #numAnswered = 0;
  /** items of streams that were given, and not committed */
  #numInWork = 0;
  /** whether the call has yet to go on after its grant or an answer, and what with */
  #fresh: "turn" | "work" | undefined = "turn";
  /** `next` has let it */
  #isGoingOn = false;
  /** items were given that may yet set the engine to work */
  #awaitsWork = false;
  #isSaid = false;

  /** The call has its devices. */
  granted(): void {
    this.#fresh ??= "turn";
  }

  /** Of a wait that the call is about to ask for with its devices: what becomes of them meanwhile. Followed by `asked`, if it may lend them. */
  terms({ keeps, computes }: Look): WaitTerms {
    if (computes) this.#computes();
    const goesOn = this.#fresh !== undefined || this.#isGoingOn; // LW3
    if (keeps) return { keeps: "throughout" };
    return computes || goesOn ? { keeps: "for-now" } : { numAnswered: this.#numAnswered };
  }

  /** A wait of a call that may lend its devices, or lock them meanwhile: `over` is no more said until it is answered. */
  asked(): void {
    this.#numOpen++;
  }

  /** `mayLend`: it was `asked`. Every answer of the call counts, whether it held devices or not. `numGiven` items are to be committed. */
  answered(brought: "room" | "items", mayLend: boolean, numGiven = 0): void {
    if (mayLend) this.#numOpen--;
    this.#numAnswered++;
    this.#numInWork += numGiven;
    if (brought === "items" && (this.#numOpen > 0 || numGiven > 0)) this.#awaitsWork = true;
    this.#fresh = this.#awaitsWork ? "work" : "turn";
    this.#isGoingOn = false;
    this.#isSaid = false;
  }

  /** The call is done with so many items, and about to commit them. Whether nothing is worked on any more. */
  committed(numItems: number): boolean {
    this.#numInWork = Math.max(0, this.#numInWork - numItems);
    if (this.#numInWork > 0) return false;
    this.#awaitsWork = false;
    if (this.#fresh !== undefined || this.#isGoingOn) this.#fresh = "turn";
    return true;
  }

  get isWaiting(): boolean {
    return this.#numOpen > 0;
  }

  next({ keeps, computes }: Look): LendStep {
    if (!this.isWaiting) return { type: "over" };
    if (keeps) return { type: "await-change" };
    if (computes) {
      this.#computes();
      return { type: "await-idle" };
    }
    const fresh = this.#fresh;
    this.#fresh = undefined;
    this.#isGoingOn = fresh !== undefined;
    if (fresh !== undefined)
      return fresh === "work" ? { type: "let-go-on", forMs: itemsGraceMs } : { type: "let-go-on" };
    this.#awaitsWork = false;
    if (this.#isSaid) return { type: "await-change" };
    this.#isSaid = true;
    return { type: "say", numAnswered: this.#numAnswered };
  }

  #computes(): void {
    this.#awaitsWork = this.#numInWork > 0;
    this.#fresh = this.#awaitsWork ? "work" : undefined;
    this.#isGoingOn = false;
    this.#isSaid = false;
  }
}
