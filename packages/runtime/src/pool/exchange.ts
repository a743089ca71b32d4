/**
 * What two sides say to each other, over messages that may be lost, late, repeated or out of order. Pure.
 *
 * - PS5 what one side says the other hears once, and in order: every message has all that is not known to have been heard.
 */

/** One message: what is said from a number on, and how much of the other side's has been heard. */
export type Exchanged<T> = { readonly from: number; readonly said: T[]; readonly heard: number };

export class Exchange<Out, In> {
  #from = 0;
  #unheard: Out[] = [];
  #heard = 0;

  say(...all: readonly Out[]): void {
    this.#unheard.push(...all);
  }

  /** Something that the other side is not known to have heard. */
  get isOpen(): boolean {
    return this.#unheard.length > 0;
  }

  message(): Exchanged<Out> {
    return { from: this.#from, said: [...this.#unheard], heard: this.#heard };
  }

  /** What it says that is new here. */
  receive({ from, said, heard }: Exchanged<In>): readonly In[] {
    const numHeard = Math.min(Math.max(0, heard - this.#from), this.#unheard.length);
    this.#unheard.splice(0, numHeard);
    this.#from += numHeard;
    if (from > this.#heard) return []; // it takes something for heard that was not: no message of this exchange
    const fresh = said.slice(this.#heard - from);
    this.#heard += fresh.length;
    return fresh;
  }
}
