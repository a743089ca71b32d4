import { IndexedHeap } from "./indexed-heap.ts";

/** Requests that end within this of the first one end with it. */
const together = (leastEnd: number): number => leastEnd * (1 + 1e-12) + 1e-9;

/**
 * The speed of one worker on virtual time. Every active request has been given as many tokens as any other since both
 * were active, so one count for all and an end in that count for each are enough: a change costs O(log n), not O(n).
 */
export class VirtualWorker {
  readonly #tokenTime: number;
  readonly #factor: (k: number) => number;
  readonly #ends: Float64Array;
  readonly #active: IndexedHeap;
  /** tokens that each active request was given so far */
  #given = 0;
  /** when `#given` was so */
  #at = 0;

  /** `ends` and `places` have an entry a trajectory, and are shared by all workers. */
  constructor(tokenTime: number, factor: (k: number) => number, ends: Float64Array, places: Int32Array) {
    this.#tokenTime = tokenTime;
    this.#factor = factor;
    this.#ends = ends;
    this.#active = new IndexedHeap(places, (a, b) => ends[a]! < ends[b]!);
  }

  /** When its next requests end; infinite when none is active. */
  get nextEnd(): number {
    const first = this.#active.head;
    if (first === undefined) return Number.POSITIVE_INFINITY;
    const left = Math.max(0, this.#ends[first]! - this.#given);
    return this.#at + left * this.#tokenTime * this.#factor(this.#active.size);
  }

  /** Gives the active requests their tokens up to `now`; before anything here changes. */
  advance(now: number): void {
    const { size } = this.#active;
    if (size > 0) this.#given += (now - this.#at) / (this.#tokenTime * this.#factor(size));
    this.#at = now;
  }

  /** Takes out those that end now, by trajectory; `now` is `nextEnd`, and `advance` has been called. */
  takeEnded(): number[] {
    const leastEnd = this.#ends[this.#active.head!]!;
    this.#given = Math.max(this.#given, leastEnd);
    const ended: number[] = [];
    for (
      let first = this.#active.head;
      first !== undefined && this.#ends[first]! <= together(leastEnd);
      first = this.#active.head
    ) {
      ended.push(first);
      this.#active.pop();
    }
    return ended.sort((a, b) => a - b);
  }

  start(trajectory: number, work: number): void {
    this.#ends[trajectory] = this.#given + work;
    this.#active.push(trajectory);
  }

  /** Takes out an active request, and says what is left of its work. */
  stop(trajectory: number): number {
    this.#active.remove(trajectory);
    return this.#ends[trajectory]! - this.#given;
  }
}
