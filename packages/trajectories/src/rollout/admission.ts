/**
 * Which requests one worker generates, and which wait: the decisions of Heddle §4.2 without a clock or an engine.
 *
 * - RO1 at most `maxBatch` requests of a worker are active
 * - RO2 a trajectory has at most one place: in the queue or among the active ones of one worker
 * - RO3 a request waits only while every place is taken, and with preemption by keys that are not larger than its own
 */
import { IndexedHeap } from "./indexed-heap.ts";

/** What the workers of one rollout share: a trajectory has one key and one place. */
export type Requests = {
  readonly keys: Float64Array;
  readonly queuePlaces: Int32Array;
  readonly activePlaces: Int32Array;
};

export function requestsOf(numTrajectories: number): Requests {
  return {
    keys: new Float64Array(numTrajectories),
    queuePlaces: new Int32Array(numTrajectories),
    activePlaces: new Int32Array(numTrajectories),
  };
}

/** One decision; a preemption is an eviction, followed by the admission to the place that it freed. */
export type AdmissionEvent = { readonly type: "admitted" | "evicted"; readonly trajectory: number };

export class Admission {
  readonly #keys: Float64Array;
  readonly #queue: IndexedHeap;
  /** by descending key: the head is the first to be evicted */
  readonly #active: IndexedHeap;
  readonly #maxBatch: number;
  readonly #isPreemptive: boolean;

  constructor(
    requests: Requests,
    { maxBatch, isPreemptive }: { readonly maxBatch: number; readonly isPreemptive: boolean },
  ) {
    const { keys } = requests;
    this.#keys = keys;
    this.#maxBatch = maxBatch;
    this.#isPreemptive = isPreemptive;
    this.#queue = new IndexedHeap(
      requests.queuePlaces,
      (a, b) => keys[a]! < keys[b]! || (keys[a] === keys[b] && a < b),
    );
    this.#active = new IndexedHeap(
      requests.activePlaces,
      (a, b) => keys[a]! > keys[b]! || (keys[a] === keys[b] && a > b),
    );
  }

  /** Requests that are here, queued or active. */
  get load(): number {
    return this.#queue.size + this.#active.size;
  }

  get numActive(): number {
    return this.#active.size;
  }

  /** RO2 `trajectory` is nowhere else. */
  submit(trajectory: number, key: number): void {
    this.#keys[trajectory] = key;
    this.#queue.push(trajectory);
  }

  /** `trajectory` is active here. */
  finish(trajectory: number): void {
    this.#active.remove(trajectory);
  }

  /** Fills free places and makes preemptions, and says so in their order; afterwards RO1 and RO3 hold. */
  *decide(): Generator<AdmissionEvent, void, undefined> {
    while (this.#active.size < this.#maxBatch) {
      const trajectory = this.#queue.pop();
      if (trajectory === undefined) return;
      this.#active.push(trajectory);
      yield { type: "admitted", trajectory };
    }
    if (!this.#isPreemptive) return;
    for (;;) {
      const [first, last] = [this.#queue.head, this.#active.head];
      if (first === undefined || last === undefined || !(this.#keys[first]! < this.#keys[last]!)) return;
      this.#queue.pop();
      this.#active.pop();
      this.#active.push(first);
      this.#queue.push(last);
      yield { type: "evicted", trajectory: last };
      yield { type: "admitted", trajectory: first };
    }
  }
}
