import { type Chunk, capacities, chunkSizeFor, chunkSizes } from "../arrange/buddy.ts";

/** Units that a running action will give back. */
export type Busy = {
  readonly units: number;
  readonly endsInSeconds: number;
  /** held by an action that takes a fixed number: the next such action will want them */
  readonly fixed?: boolean | undefined;
};

/** What the scheduler knows of one resource. With `chunks`, whole units are cut as buddy intervals from them. */
export type ResourceState = {
  readonly free: number;
  readonly busy?: readonly Busy[] | undefined;
  readonly chunks?: readonly Chunk[] | undefined;
};

/** Adds up demands on one resource while they fit. */
export class Room {
  #left: number;
  readonly #capacity: number[] | undefined;
  readonly #used = new Array<number>(chunkSizes.length).fill(0);

  constructor({ free, chunks }: ResourceState) {
    this.#left = free;
    this.#capacity = chunks === undefined ? undefined : capacities(chunks);
  }

  /** With a slack of 1e-9, so that sums of fractions do not fail by rounding. */
  holds(units: number): boolean {
    if (this.#capacity === undefined) return units <= this.#left + 1e-9;
    if (units === 0) return true;
    const size = chunkSizeFor(units);
    return size !== undefined && this.#capacity.every((c, a) => chunkSizes[a]! > size || this.#used[a]! + size <= c);
  }

  take(units: number): void {
    this.#left -= units;
    const size = this.#capacity === undefined || units === 0 ? undefined : chunkSizeFor(units);
    if (size === undefined) return;
    for (let a = 0; a < chunkSizes.length && chunkSizes[a]! <= size; a++) this.#used[a]! += size;
  }
}
