/** A channel of one step in a replay: items are alike, so they are counted. */

/** Sums of parts of items need not be whole. */
const slack = 1e-9;

/** `undefined` at the end of the stream */
type OnItems = (items: number | undefined) => void;
type Take = { readonly by: object; readonly most: number | "all"; readonly onItems: OnItems };
/** Ranks that take in rounds (C8): `takes` are those that wait, of `ranks`. */
type Gang = { readonly ranks: number; readonly takes: Take[] };
type Put = { left: number; readonly onAccepted: () => void };

export class ReplayedStream {
  readonly #itemsPerStep: number;
  #capacity = Number.POSITIVE_INFINITY;
  #producers = 0;
  /** consumers that have not had their share of all, and those that have: they leave the rest to the others */
  #unserved = 0;
  readonly #served = new Set<object>();
  #queued = 0;
  /** queued, or taken and not acknowledged */
  #used = 0;
  readonly #held = new Map<object, number>();
  readonly #takes: Take[] = [];
  readonly #puts: Put[] = [];
  readonly #gangs = new Map<object, Gang>();

  constructor(itemsPerStep: number) {
    this.#itemsPerStep = itemsPerStep;
  }

  addProducers(ranks: number, capacity: number): void {
    this.#producers += ranks;
    this.#capacity = capacity;
  }

  addConsumers(ranks: number): void {
    this.#unserved += ranks;
  }

  /** What nobody here produces, the runner has put. */
  open(): void {
    if (this.#producers === 0) this.#queued = this.#itemsPerStep;
  }

  take(by: object, most: number | "all", onItems: OnItems): void {
    this.#takes.push({ by, most, onItems });
    this.#serve();
  }

  /** With so many ranks of the same gang: each gets its part of a round, which may be nothing. */
  takeInGang(gang: object, ranks: number, take: Take): void {
    const known = this.#gangs.get(gang) ?? { ranks, takes: [] };
    this.#gangs.set(gang, known);
    known.takes.push(take);
    this.#serve();
  }

  put(items: number, onAccepted: () => void): void {
    this.#puts.push({ left: items, onAccepted });
    this.#serve();
  }

  /** What it has taken counts against the capacity until it asks again. */
  acknowledge(by: object): void {
    this.#used -= this.#held.get(by) ?? 0;
    this.#held.delete(by);
    this.#serve();
  }

  leave(by: object): void {
    this.acknowledge(by);
  }

  closeProducer(): void {
    this.#producers--;
    this.#serve();
  }

  #serve(): void {
    for (let goesOn = true; goesOn; ) {
      goesOn = this.#deal() || this.#admit();
      // Who waits for the whole stream waits alike, so that its end is looked for once.
      if (!this.#isEnded && this.#takes[0]?.most === "all") continue;
      for (const [at, take] of this.#takes.entries()) {
        const items = this.#answer(take);
        if (items === undefined) continue;
        this.#takes.splice(at, 1);
        this.#give(take, items);
        goesOn = true;
        break;
      }
    }
  }

  #give({ by, onItems }: Take, items: number): void {
    this.#queued -= items;
    this.#held.set(by, items);
    onItems(items > 0 ? items : undefined);
  }

  /** A round is dealt when there is all that its ranks want, or no more will come: all of a full stream is what it has (C8). */
  #deal(): boolean {
    for (const { ranks, takes } of this.#gangs.values()) {
      if (takes.length < ranks) continue;
      const isEmpty = this.#queued < slack;
      const wanted = wantedOf(takes);
      const isWhole = this.#queued >= wanted - slack || (this.#isFull && wanted === Number.POSITIVE_INFINITY);
      if (!this.#isEnded && (isEmpty || !isWhole)) continue;
      let left = isEmpty ? 0 : Math.min(this.#queued, wanted);
      const round = takes.splice(0).map((take, at) => {
        const items = Math.min(left, Math.ceil(left / (ranks - at) - slack));
        left -= items;
        return { take, items };
      });
      for (const { items } of round) this.#queued -= items;
      for (const { take, items } of round) this.#held.set(take.by, items);
      for (const { take, items } of round) take.onItems(isEmpty ? undefined : items);
      return true;
    }
    return false;
  }

  /** A put waits for credit. */
  get #isFull(): boolean {
    return this.#puts.length > 0 && this.#capacity - this.#used < slack;
  }

  get #isEnded(): boolean {
    return this.#producers === 0 && this.#puts.length === 0;
  }

  /** What there is credit for, and what a take that waits lacks (C3); true when a put is done with that. */
  #admit(): boolean {
    const [put] = this.#puts;
    if (put === undefined) return false;
    const [take] = this.#takes;
    const gang = [...this.#gangs.values()].find(({ ranks, takes }) => takes.length === ranks);
    const wanted = gang ? wantedOf(gang.takes) : take === undefined || take.most === "all" ? 0 : take.most;
    const lacking = wanted - this.#queued;
    const items = Math.min(put.left, Math.max(0, this.#capacity - this.#used, lacking));
    put.left -= items;
    this.#queued += items;
    this.#used += items;
    if (put.left > slack) return false;
    this.#puts.shift();
    put.onAccepted();
    return true;
  }

  #answer({ by, most }: Take): number | undefined {
    const isEnded = this.#isEnded;
    if (this.#queued < slack) return isEnded ? 0 : undefined;
    if (most !== "all") {
      if (this.#queued >= most - slack) return Math.min(most, this.#queued);
      return isEnded ? this.#queued : undefined;
    }
    if (!isEnded) return undefined;
    if (this.#served.has(by)) return this.#unserved > 0 ? undefined : this.#queued;
    const share = Math.min(this.#queued, Math.ceil(this.#queued / Math.max(1, this.#unserved) - slack));
    this.#served.add(by);
    this.#unserved--;
    return share;
  }
}

const wantedOf = (takes: readonly Take[]): number =>
  takes.reduce((sum, { most }) => sum + (most === "all" ? Number.POSITIVE_INFINITY : most), 0);
