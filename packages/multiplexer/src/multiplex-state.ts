import type { Action } from "./action.ts";
import type { SubStageGraph } from "./graph.ts";

const nobody = -1;

/**
 * Who runs where, at one instant of virtual time. It owns nothing but numbers in one buffer, so that copying it is one
 * memory copy; policies read it and hand it actions, and it moves time to the next end.
 *
 *  * MX1 a worker runs at most two sub-stages at a time, of different pipelines.
 *  * MX2 the memory shares of what runs on a worker add to at most the problem's memory.
 *  * MX3 a sub-stage starts once, on its own worker, after all that it needs have ended, and runs to its end.
 *  * MX4 what a worker does changes at its decision points alone.
 */
export class MultiplexState {
  readonly graph: SubStageGraph;
  readonly #bytes: Uint8Array;
  /** [now] */
  readonly #clock: Float64Array;
  /** seconds of work left at factor 1, as of the last change on its worker */
  readonly #left: Float64Array;
  /** when it became ready; once it has ended, when it ended */
  readonly #reachedAt: Float64Array;
  /** by place, two a worker, then the CPU's: when what runs there ends, and from when on it ends with another */
  readonly #endsAt: Float64Array;
  readonly #endsBy: Float64Array;
  /** of each worker: the earlier of its places */
  readonly #nextEndsAt: Float64Array;
  readonly #nextEndsBy: Float64Array;
  /** of each worker: the last instant at which `#left` was brought up to date */
  readonly #since: Float64Array;
  /** of each worker: seconds of work that have not ended, alone at least factors */
  readonly #unended: Float64Array;
  /** seconds that one second of work takes, by place */
  readonly #pace: Float64Array;
  /** by place: the sub-stage, or nobody; of a worker's two places the first is taken first */
  readonly #running: Int32Array;
  readonly #option: Int32Array;
  readonly #unmet: Int32Array;
  /** the ready sub-stages of each worker, ascending, from `graph.firstOfWorker` on */
  readonly #ready: Int32Array;
  readonly #numReady: Int32Array;
  readonly #split: Int32Array;
  /** 1: the worker's decision is still due at this instant */
  readonly #due: Int32Array;
  /** [ended, running on the CPU, a worker below which no decision is due] */
  readonly #counts: Int32Array;

  constructor(graph: SubStageGraph) {
    this.graph = graph;
    const { numSubStages: n, numWorkers: w } = graph;
    const numOnWorkers = graph.firstOfWorker[w]!;
    const places = 2 * w + n - numOnWorkers;
    const numDoubles = 1 + 2 * n + 3 * places + 4 * w;
    const numInts = places + 2 * n + numOnWorkers + 3 * w + 3;
    const buffer = new ArrayBuffer(8 * numDoubles + 4 * numInts);
    this.#bytes = new Uint8Array(buffer);
    let offset = 0;
    const doubles = (count: number): Float64Array => {
      const view = new Float64Array(buffer, offset, count);
      offset += 8 * count;
      return view;
    };
    const ints = (count: number): Int32Array => {
      const view = new Int32Array(buffer, offset, count);
      offset += 4 * count;
      return view;
    };
    this.#clock = doubles(1);
    this.#left = doubles(n);
    this.#reachedAt = doubles(n);
    this.#endsAt = doubles(places);
    this.#endsBy = doubles(places);
    this.#pace = doubles(places);
    this.#nextEndsAt = doubles(w);
    this.#nextEndsBy = doubles(w);
    this.#since = doubles(w);
    this.#unended = doubles(w);
    this.#running = ints(places);
    this.#option = ints(n);
    this.#unmet = ints(n);
    this.#ready = ints(numOnWorkers);
    this.#numReady = ints(w);
    this.#split = ints(w);
    this.#due = ints(w);
    this.#counts = ints(3);
  }

  /** At time 0, with everything ready that needs nothing, and what the CPU has started. */
  static initial(graph: SubStageGraph): MultiplexState {
    const state = new MultiplexState(graph);
    state.#left.set(graph.seconds);
    state.#unmet.set(graph.deps.map((list) => list.length));
    state.#running.fill(nobody);
    state.#endsAt.fill(Number.POSITIVE_INFINITY);
    state.#endsBy.fill(Number.POSITIVE_INFINITY);
    state.#nextEndsAt.fill(Number.POSITIVE_INFINITY);
    state.#nextEndsBy.fill(Number.POSITIVE_INFINITY);
    for (let i = 0; i < graph.numSubStages; i++) {
      const worker = graph.worker[i]!;
      if (worker >= 0) state.#unended[worker]! += graph.seconds[i]! * graph.leastFactor[i]!;
      if (graph.deps[i]!.length === 0) state.#becomeReady(i);
    }
    return state;
  }

  copyFrom(other: MultiplexState): this {
    this.#bytes.set(other.#bytes);
    return this;
  }

  get now(): number {
    return this.#clock[0]!;
  }

  get isDone(): boolean {
    return this.#counts[0] === this.graph.numSubStages;
  }

  /** What runs on `worker` and was there first, or -1. */
  first(worker: number): number {
    return this.#running[2 * worker]!;
  }

  /** What runs beside the first, or -1. */
  second(worker: number): number {
    return this.#running[2 * worker + 1]!;
  }

  split(worker: number): number {
    return this.#split[worker]!;
  }

  numReady(worker: number): number {
    return this.#numReady[worker]!;
  }

  /** The ready sub-stages of `worker` by index, `at` from 0. */
  ready(worker: number, at: number): number {
    return this.#ready[this.graph.firstOfWorker[worker]! + at]!;
  }

  /** When a sub-stage that has not ended became ready. */
  readyAt(substage: number): number {
    return this.#reachedAt[substage]!;
  }

  hasStarted(substage: number): boolean {
    const worker = this.graph.worker[substage]!;
    if (this.#unmet[substage]! > 0) return false;
    for (let at = 0; worker >= 0 && at < this.#numReady[worker]!; at++) {
      if (this.ready(worker, at) === substage) return false;
    }
    return true;
  }

  /** When a sub-stage that has ended did so. */
  endedAt(substage: number): number {
    return this.#reachedAt[substage]!;
  }

  /** Seconds of work that are left of a sub-stage of `worker` at this instant, at factor 1. */
  left(worker: number, substage: number): number {
    for (let place = 2 * worker; place < 2 * worker + 2; place++) {
      if (this.#running[place] !== substage) continue;
      return Math.max(0, this.#left[substage]! - (this.now - this.#since[worker]!) / this.#pace[place]!);
    }
    return this.#left[substage]!;
  }

  /** Seconds of work that are left on `worker`, what needs others included, alone at least factors. */
  workLeft(worker: number): number {
    const { seconds, leastFactor } = this.graph;
    let left = this.#unended[worker]!;
    for (let place = 2 * worker; place < 2 * worker + 2; place++) {
      const substage = this.#running[place]!;
      if (substage !== nobody) left -= (seconds[substage]! - this.left(worker, substage)) * leastFactor[substage]!;
    }
    return left;
  }

  /** The memory share of what runs. */
  share(substage: number): number {
    return this.graph.optionShare[this.graph.firstOption[substage]! + this.#option[substage]!]!;
  }

  /** The factor of what runs. */
  factor(substage: number): number {
    return this.graph.optionFactor[this.graph.firstOption[substage]! + this.#option[substage]!]!;
  }

  /** Whether `worker` has a decision at this instant: something on it ended or became ready, and there is something to decide. */
  isDue(worker: number): boolean {
    return this.#due[worker] === 1 && (this.#running[2 * worker] !== nobody || this.#numReady[worker]! > 0);
  }

  /** The lowest worker whose decision is due, or -1. */
  nextDue(): number {
    const { numWorkers } = this.graph;
    for (let w = this.#counts[2]!; w < numWorkers; w++) {
      if (this.isDue(w)) {
        this.#counts[2] = w;
        return w;
      }
      this.#due[w] = 0;
    }
    this.#counts[2] = numWorkers;
    return nobody;
  }

  /** Decides for `worker`: starts and a split. The action must be one of `actionsOf`. */
  apply(worker: number, { start, option, beside, besideOption, split }: Action): this {
    this.#due[worker] = 0;
    const place = 2 * worker;
    const isPair = this.#running[place + 1] !== nobody;
    if (start === nobody && (!isPair || split === this.#split[worker])) return this;
    this.#settle(worker);
    if (start !== nobody) this.#start(worker, start, option);
    if (beside !== nobody) this.#start(worker, beside, besideOption);
    this.#split[worker] = split;
    this.#pacePlaces(worker);
    return this;
  }

  /** From when on something on `worker` ends with what ends elsewhere, if `action` is taken now. */
  nextEndBy(worker: number, { start, option, beside, besideOption, split }: Action): number {
    const { type, numTypes, numSplits, slowdown, firstOption, optionFactor, endTolerance } = this.graph;
    let [first, second] = [this.first(worker), this.second(worker)];
    let factorOfFirst = first === nobody ? 1 : this.factor(first);
    let factorOfSecond = second === nobody ? 1 : this.factor(second);
    if (start !== nobody) {
      const factor = optionFactor[firstOption[start]! + option]!;
      if (first === nobody) {
        [first, factorOfFirst] = [start, factor];
        if (beside !== nobody) [second, factorOfSecond] = [beside, optionFactor[firstOption[beside]! + besideOption]!];
      } else [second, factorOfSecond] = [start, factor];
    }
    if (first === nobody) return Number.POSITIVE_INFINITY;
    const endBy = (substage: number, pace: number): number =>
      this.now + (this.left(worker, substage) - endTolerance[substage]!) * pace;
    if (second === nobody) return endBy(first, factorOfFirst);
    const [a, b] = [type[first]!, type[second]!];
    return Math.min(
      endBy(first, factorOfFirst * slowdown[(a * numTypes + b) * numSplits + split]!),
      endBy(second, factorOfSecond * slowdown[(b * numTypes + a) * numSplits + numSplits - 1 - split]!),
    );
  }

  /** The earliest end of all. */
  nextEnd(): number {
    const { numWorkers } = this.graph;
    let next = Number.POSITIVE_INFINITY;
    for (let worker = 0; worker < numWorkers; worker++) next = Math.min(next, this.#nextEndsAt[worker]!);
    for (let place = 2 * numWorkers + this.#counts[1]! - 1; place >= 2 * numWorkers; place--) {
      next = Math.min(next, this.#endsAt[place]!);
    }
    return next;
  }

  /** Leaves the decision of `worker` open while time moves on for the others: nothing ends there until `decideLate`. */
  postpone(worker: number): void {
    this.#due[worker] = 0;
    this.#nextEndsAt[worker] = Number.POSITIVE_INFINITY;
    this.#nextEndsBy[worker] = Number.POSITIVE_INFINITY;
  }

  /** Decides for a postponed `worker` as of `then`; nothing may have ended there since. What is due there now stays due. */
  decideLate(worker: number, action: Action, then: number): this {
    const now = this.now;
    const due = this.#due[worker]!;
    this.#clock[0] = then;
    this.#nextEndsAt[worker] = Math.min(this.#endsAt[2 * worker]!, this.#endsAt[2 * worker + 1]!);
    this.#nextEndsBy[worker] = Math.min(this.#endsBy[2 * worker]!, this.#endsBy[2 * worker + 1]!);
    this.apply(worker, action);
    this.#clock[0] = now;
    this.#due[worker] = due;
    return this;
  }

  /** Moves time to the earliest end; false when nothing runs. */
  advance(): boolean {
    const { numWorkers } = this.graph;
    const nextEndsAt = this.#nextEndsAt;
    const nextEndsBy = this.#nextEndsBy;
    const endsAt = this.#endsAt;
    const endsBy = this.#endsBy;
    let next = Number.POSITIVE_INFINITY;
    for (let worker = 0; worker < numWorkers; worker++) if (nextEndsAt[worker]! < next) next = nextEndsAt[worker]!;
    for (let place = 2 * numWorkers + this.#counts[1]! - 1; place >= 2 * numWorkers; place--) {
      if (endsAt[place]! < next) next = endsAt[place]!;
    }
    if (next === Number.POSITIVE_INFINITY) return false;
    this.#clock[0] = next;
    const becameReady: number[] = [];
    for (let worker = 0; worker < numWorkers; worker++) {
      if (nextEndsBy[worker]! > next) continue;
      // the second before the first, which would take its place
      for (let place = 2 * worker + 1; place >= 2 * worker; place--) {
        if (endsBy[place]! <= next) this.#end(place, becameReady);
      }
    }
    for (let place = 2 * numWorkers + this.#counts[1]! - 1; place >= 2 * numWorkers; place--) {
      if (endsBy[place]! <= next) this.#end(place, becameReady);
    }
    if (becameReady.length > 1) becameReady.sort((a, b) => a - b);
    for (const substage of becameReady) this.#becomeReady(substage);
    return true;
  }

  /** Seconds of the longest chain of what is left, alone and at least factors. */
  longestChain(): number {
    const { numWorkers, leastFactor, chainAfter, firstOfWorker } = this.graph;
    const { now } = this;
    let longest = 0;
    const consider = (substage: number, left: number): void => {
      const chain = left * leastFactor[substage]! + chainAfter[substage]!;
      if (chain > longest) longest = chain;
    };
    for (let worker = 0; worker < numWorkers; worker++) {
      for (let place = 2 * worker; place < 2 * worker + 2; place++) {
        const substage = this.#running[place]!;
        if (substage !== nobody) {
          consider(substage, Math.max(0, this.#left[substage]! - (now - this.#since[worker]!) / this.#pace[place]!));
        }
      }
      const from = firstOfWorker[worker]!;
      for (let at = from; at < from + this.#numReady[worker]!; at++) {
        consider(this.#ready[at]!, this.#left[this.#ready[at]!]!);
      }
    }
    const places = 2 * numWorkers + this.#counts[1]!;
    for (let place = 2 * numWorkers; place < places; place++) {
      consider(this.#running[place]!, this.#endsAt[place]! - now);
    }
    return longest;
  }

  #becomeReady(substage: number): void {
    const { worker: workers, firstOfWorker, numWorkers } = this.graph;
    const worker = workers[substage]!;
    this.#reachedAt[substage] = this.now;
    if (worker < 0) {
      const place = 2 * numWorkers + this.#counts[1]!++;
      this.#running[place] = substage;
      this.#paceAt(place, 1);
      return;
    }
    const from = firstOfWorker[worker]!;
    let at = from + this.#numReady[worker]!++;
    for (; at > from && this.#ready[at - 1]! > substage; at--) this.#ready[at] = this.#ready[at - 1]!;
    this.#ready[at] = substage;
    this.#becomeDue(worker);
  }

  #becomeDue(worker: number): void {
    this.#due[worker] = 1;
    if (worker < this.#counts[2]!) this.#counts[2] = worker;
  }

  #start(worker: number, substage: number, option: number): void {
    const from = this.graph.firstOfWorker[worker]!;
    const count = --this.#numReady[worker]!;
    let at = from;
    while (this.#ready[at] !== substage) at++;
    for (; at < from + count; at++) this.#ready[at] = this.#ready[at + 1]!;
    this.#option[substage] = option;
    this.#running[this.#running[2 * worker] === nobody ? 2 * worker : 2 * worker + 1] = substage;
  }

  #end(place: number, becameReady: number[]): void {
    const substage = this.#running[place]!;
    const { numWorkers, dependants, seconds, leastFactor } = this.graph;
    this.#counts[0]!++;
    this.#reachedAt[substage] = this.now;
    if (place < 2 * numWorkers) {
      const worker = place >> 1;
      this.#unended[worker]! -= seconds[substage]! * leastFactor[substage]!;
      this.#settle(worker);
      if (place === 2 * worker) this.#running[place] = this.#running[place + 1]!;
      this.#running[2 * worker + 1] = nobody;
      this.#pacePlaces(worker);
      this.#becomeDue(worker);
    } else {
      const last = 2 * numWorkers + --this.#counts[1]!;
      this.#running[place] = this.#running[last]!;
      this.#endsAt[place] = this.#endsAt[last]!;
      this.#endsBy[place] = this.#endsBy[last]!;
    }
    for (const next of dependants[substage]!) if (--this.#unmet[next]! === 0) becameReady.push(next);
  }

  /** Takes off what was done since the last change on `worker`. */
  #settle(worker: number): void {
    const elapsed = this.now - this.#since[worker]!;
    this.#since[worker] = this.now;
    if (elapsed === 0) return;
    for (let place = 2 * worker; place < 2 * worker + 2; place++) {
      const substage = this.#running[place]!;
      if (substage === nobody) continue;
      this.#left[substage] = Math.max(0, this.#left[substage]! - elapsed / this.#pace[place]!);
    }
  }

  #pacePlaces(worker: number): void {
    const { type, numTypes, numSplits, slowdown } = this.graph;
    const place = 2 * worker;
    const first = this.#running[place]!;
    const second = this.#running[place + 1]!;
    if (second === nobody) {
      this.#paceAt(place, first === nobody ? 1 : this.factor(first));
      this.#paceAt(place + 1, 1);
    } else {
      const a = type[first]!;
      const b = type[second]!;
      const split = this.#split[worker]!;
      this.#paceAt(place, this.factor(first) * slowdown[(a * numTypes + b) * numSplits + split]!);
      this.#paceAt(place + 1, this.factor(second) * slowdown[(b * numTypes + a) * numSplits + numSplits - 1 - split]!);
    }
    this.#nextEndsAt[worker] = Math.min(this.#endsAt[place]!, this.#endsAt[place + 1]!);
    this.#nextEndsBy[worker] = Math.min(this.#endsBy[place]!, this.#endsBy[place + 1]!);
  }

  #paceAt(place: number, pace: number): void {
    const substage = this.#running[place]!;
    if (substage === nobody) {
      this.#endsAt[place] = Number.POSITIVE_INFINITY;
      this.#endsBy[place] = Number.POSITIVE_INFINITY;
      return;
    }
    this.#pace[place] = pace;
    const endsAt = this.now + this.#left[substage]! * pace;
    this.#endsAt[place] = endsAt;
    this.#endsBy[place] = endsAt - this.graph.endTolerance[substage]! * pace;
  }
}
