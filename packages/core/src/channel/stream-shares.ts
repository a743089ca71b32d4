/**
 * Who gets how much of a stream among consumers that want all of it: equal shares, once it is complete. Pure: it counts
 * calls and keeps the takes that wait; the channel's home says what is queued and carries the shares out.
 *
 * Each time one takes, what is left is divided by how many consumers have not had theirs. One that has had its share and
 * asks again waits until its fellow ranks have theirs, so that whoever is early takes nothing from whoever is late.
 */
export type ShareTake = { readonly take: number; readonly call: string };

export class StreamShares {
  #producers = 0;
  readonly #consumers = new Set<string>();
  readonly #served = new Set<string>();
  #waiting: ShareTake[] = [];
  /** consumers that have not had their share */
  #numUnserved = 0;

  /** No open call uses the stream. */
  get isUnused(): boolean {
    return this.#producers === 0 && this.#consumers.size === 0;
  }

  open(role: "source" | "sink", call: string): void {
    if (role === "sink") {
      this.#producers++;
      return;
    }
    if (this.#producers === 0 && this.#served.size === this.#consumers.size) {
      this.#served.clear();
      this.#numUnserved = this.#consumers.size;
    }
    if (this.#consumers.has(call)) return;
    this.#consumers.add(call);
    if (!this.#served.has(call)) this.#numUnserved++;
  }

  close(role: "source" | "sink", call: string): void {
    if (role === "sink") this.#producers--;
    else {
      this.#unmarkServed(call);
      if (this.#consumers.delete(call)) this.#numUnserved--;
    }
  }

  /** It will not ask again, although its call stays open for its fellow ranks. */
  done(call: string): void {
    this.#markServed(call);
  }

  startOver(call: string): void {
    this.#unmarkServed(call);
    this.#waiting = this.#waiting.filter((waiting) => waiting.call !== call);
  }

  ask(take: ShareTake): void {
    this.#waiting.push(take);
  }

  /** Gives shares, of at most so many items, as one of so many parts, to those that may have them now. A full channel gives of what there is. */
  serve(
    queuedItems: () => number,
    give: (take: ShareTake, items: number, parts: number) => void,
    isFull = false,
  ): void {
    if (this.#waiting.length === 0 || (this.#producers > 0 && !isFull)) return;
    const asking = this.#waiting;
    // First shares first: each of them may be what somebody who is ahead waits for.
    asking.sort((a, b) => Number(this.#served.has(a.call)) - Number(this.#served.has(b.call)));
    this.#waiting = [];
    for (const waiting of asking) {
      if (!isFull && this.#isAhead(waiting.call)) {
        this.#waiting.push(waiting);
        continue;
      }
      const parts = Math.max(1, this.#numUnserved);
      const share = Math.max(1, Math.ceil(queuedItems() / parts));
      if (!isFull) this.#markServed(waiting.call);
      give(waiting, share, parts);
    }
  }

  #markServed(call: string): void {
    if (this.#consumers.has(call) && !this.#served.has(call)) this.#numUnserved--;
    this.#served.add(call);
  }

  #unmarkServed(call: string): void {
    if (this.#served.delete(call) && this.#consumers.has(call)) this.#numUnserved++;
  }

  #isAhead(call: string): boolean {
    if (this.#numUnserved === 0 || !this.#served.has(call)) return false;
    const group = groupCallOf(call);
    for (const other of this.#consumers) if (!this.#served.has(other) && groupCallOf(other) === group) return true;
    return false;
  }
}

/** Ranks of one group call have ids that differ behind the slash only. */
const groupCallOf = (call: string): string => call.slice(0, call.lastIndexOf("/") + 1) || call;
