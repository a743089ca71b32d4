/**
 * Time, chance and messages of simulated clusters, which may have one time together. In each, every host has links to the others, in order and whole, that stall
 * while they are cut, and a bus, in order between two hosts, that loses and doubles what it carries.
 */

export type Host = string;
type Event = { readonly atMs: number; readonly order: number; readonly act: () => void };

/** xorshift; the same seed gives the same numbers everywhere. */
export function randomOf(seed: number): () => number {
  let state = (seed ^ 0x9e3779b9) | 0 || 1;
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 8; i++) next();
  return next;
}

/** What happens next, in one or in several clusters. */
export class VirtualTime {
  nowMs = 0;
  readonly #events: Event[] = [];
  #order = 0;

  at(atMs: number, act: () => void): void {
    this.#push({ atMs, order: ++this.#order, act });
  }

  /** Runs what comes next; false when nothing does. */
  step(): boolean {
    const event = this.#pop();
    if (event === undefined) return false;
    this.nowMs = event.atMs;
    event.act();
    return true;
  }

  #push(event: Event): void {
    const heap = this.#events;
    let at = heap.length;
    heap.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(event, heap[parent] as Event)) break;
      heap[at] = heap[parent] as Event;
      at = parent;
    }
    heap[at] = event;
  }

  #pop(): Event | undefined {
    const heap = this.#events;
    const first = heap[0];
    const last = heap.pop();
    if (first === undefined || last === undefined || heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1] as Event, heap[child] as Event)) child++;
      if (!isBefore(heap[child] as Event, last)) break;
      heap[at] = heap[child] as Event;
      at = child;
    }
    heap[at] = last;
    return first;
  }
}

export class VirtualNetwork {
  readonly #time: VirtualTime;
  readonly random: () => number;
  /** of the bus, until it is calm */
  loss = 0.03;
  doubling = 0.05;
  isBusAway = false;
  readonly #cuts = new Map<string, number>();
  readonly #arrivals = new Map<string, number>();
  readonly #stalled = new Map<string, (() => void)[]>();

  constructor(seed: number, time = new VirtualTime()) {
    this.random = randomOf(seed);
    this.#time = time;
  }

  get nowMs(): number {
    return this.#time.nowMs;
  }

  between = (low: number, high: number): number => low + this.random() * (high - low);

  after(delayMs: number, act: () => void): void {
    this.#time.at(this.nowMs + delayMs, act);
  }

  /** Runs what comes next; false when nothing does. */
  step(): boolean {
    return this.#time.step();
  }

  cut(from: Host, to: Host): void {
    const way = `${from}>${to}`;
    this.#cuts.set(way, (this.#cuts.get(way) ?? 0) + 1);
  }

  mend(from: Host, to: Host): void {
    const way = `${from}>${to}`;
    const left = (this.#cuts.get(way) ?? 0) - 1;
    if (left > 0) {
      this.#cuts.set(way, left);
      return;
    }
    this.#cuts.delete(way);
    const waiting = this.#stalled.get(way) ?? [];
    this.#stalled.delete(way);
    for (const deliver of waiting) this.link(from, to, deliver);
  }

  isCut(from: Host, to: Host): boolean {
    return this.#cuts.has(`${from}>${to}`);
  }

  /** A connection needs both ways. */
  hasBus(a: Host, b: Host): boolean {
    return !this.isBusAway && !this.isCut(a, b) && !this.isCut(b, a);
  }

  link(from: Host, to: Host, deliver: () => void): void {
    const way = `${from}>${to}`;
    if (this.#cuts.has(way)) {
      const waiting = this.#stalled.get(way) ?? [];
      waiting.push(deliver);
      this.#stalled.set(way, waiting);
      return;
    }
    this.#inOrder(`link ${way}`, this.between(0.2, 4), deliver);
  }

  bus(from: Host, to: Host, deliver: () => void): void {
    if (this.isBusAway || this.isCut(from, to) || this.random() < this.loss) return;
    this.#inOrder(`bus ${from}>${to}`, this.between(0.5, 30), deliver);
    if (this.random() < this.doubling) this.#inOrder(`bus ${from}>${to}`, this.between(0, 900), deliver);
  }

  #inOrder(way: string, delayMs: number, deliver: () => void): void {
    const atMs = Math.max(this.nowMs + delayMs, this.#arrivals.get(way) ?? 0);
    this.#arrivals.set(way, atMs);
    this.#time.at(atMs, deliver);
  }
}

const isBefore = (a: Event, b: Event): boolean => a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
