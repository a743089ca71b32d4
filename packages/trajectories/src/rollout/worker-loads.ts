import { LeastTree } from "./least-tree.ts";

/** Requests at each worker, queued or active. */
export class WorkerLoads {
  readonly #loads: Int32Array;
  readonly #least: LeastTree;
  readonly #most: LeastTree;

  constructor(numWorkers: number) {
    this.#loads = new Int32Array(numWorkers);
    this.#least = new LeastTree(numWorkers, 0);
    this.#most = new LeastTree(numWorkers, 0);
  }

  get numWorkers(): number {
    return this.#loads.length;
  }

  get least(): number {
    return this.#least.least;
  }

  get most(): number {
    return -this.#most.least;
  }

  /** The worker of the least load, of several the first. */
  get leastLoaded(): number {
    return this.#least.slot;
  }

  add(worker: number, change: number): void {
    const load = this.#loads[worker]! + change;
    this.#loads[worker] = load;
    this.#least.set(worker, load);
    this.#most.set(worker, -load);
  }
}
