/**
 * Spans on lanes: one for every device, showing whose work is on it, and one for every rank, showing what it does. Pure.
 *
 * LN1 rows come in any order and are kept in the order of their starts; what is new costs by its number, not by what is there.
 * LN2 a drawing costs by its pixels: `visit` gives spans that can be seen one by one, and the others by blocks, each with the
 *     time that it covers by colour.
 */
import { type Category, categories, categoryNumber, type SpanTable } from "./span-table.ts";

const blockSize = 64;
const frames: ReadonlySet<number> = new Set((["call", "step", "evaluation"] as const).map(categoryNumber));
const occupying: ReadonlySet<number> = new Set(
  (["compute", "transfer", "onload", "offload"] as const).map(categoryNumber),
);
export const isFrame = (category: number): boolean => frames.has(category);

/** Blocks know the time that they cover in so many colours: a rank's by category, a device's by component. */
export const numPaints: number = Math.max(categories.length, 64);

export class Lane {
  readonly group: "devices" | "workers";
  readonly label: string;
  readonly component: string;
  readonly sub: number;
  /** rows of the table by start */
  rows: Uint32Array = new Uint32Array(16);
  length = 0;
  /** the latest end of all spans up to and with this block */
  #latest: Float64Array = new Float64Array(4);
  #first: Float64Array = new Float64Array(4);
  #last: Float64Array = new Float64Array(4);
  #longest: Float32Array = new Float32Array(4);
  #covered: Float32Array = new Float32Array(4 * numPaints);
  #dirty = 0;

  constructor(group: Lane["group"], label: string, component: string, sub: number) {
    this.group = group;
    this.label = label;
    this.component = component;
    this.sub = sub;
  }

  add(table: SpanTable, row: number): void {
    if (this.length === this.rows.length) {
      const grown = new Uint32Array(2 * this.length);
      grown.set(this.rows);
      this.rows = grown;
    }
    const start = table.start[row] as number;
    let at = this.length;
    if (at > 0 && (table.start[this.rows[at - 1] as number] as number) > start) {
      let low = 0;
      while (low < at) {
        const middle = (low + at) >> 1;
        if ((table.start[this.rows[middle] as number] as number) <= start) low = middle + 1;
        else at = middle;
      }
      this.rows.copyWithin(at + 1, at, this.length);
    }
    this.rows[at] = row;
    this.length++;
    this.#dirty = Math.min(this.#dirty, Math.floor(at / blockSize));
  }

  /** Brings the blocks up to date, from the first that changed. */
  settle(table: SpanTable, paintOf: (row: number) => number): void {
    const numBlocks = Math.ceil(this.length / blockSize);
    if (this.#dirty >= numBlocks) return;
    if (numBlocks > this.#first.length) {
      const size = Math.max(numBlocks, 2 * this.#first.length);
      this.#first = copyOf(this.#first, new Float64Array(size));
      this.#last = copyOf(this.#last, new Float64Array(size));
      this.#latest = copyOf(this.#latest, new Float64Array(size));
      this.#longest = copyOf(this.#longest, new Float32Array(size));
      this.#covered = copyOf(this.#covered, new Float32Array(size * numPaints));
    }
    for (let block = this.#dirty; block < numBlocks; block++) {
      const from = block * blockSize;
      const to = Math.min(this.length, from + blockSize);
      let last = Number.NEGATIVE_INFINITY;
      let longest = 0;
      this.#covered.fill(0, block * numPaints, (block + 1) * numPaints);
      for (let i = from; i < to; i++) {
        const row = this.rows[i] as number;
        const duration = table.duration[row] as number;
        last = Math.max(last, (table.start[row] as number) + duration);
        longest = Math.max(longest, duration);
        if (frames.has(table.category[row] as number)) continue;
        const paint = block * numPaints + (paintOf(row) % numPaints);
        this.#covered[paint] = (this.#covered[paint] as number) + duration;
      }
      this.#first[block] = table.start[this.rows[from] as number] as number;
      this.#last[block] = last;
      this.#longest[block] = longest;
      this.#latest[block] = block === 0 ? last : Math.max(last, this.#latest[block - 1] as number);
    }
    this.#dirty = numBlocks;
  }

  /**
   * What is between two times, at `msPerPixel`: spans that are at least as wide as `leastPixels` (and those beside them in
   * their block), and blocks of thinner ones: where they begin and end, and the milliseconds covered in each paint.
   */
  visit(
    table: SpanTable,
    { fromMs, toMs, leastMs }: { readonly fromMs: number; readonly toMs: number; readonly leastMs: number },
    onSpan: (row: number) => void,
    onBlock: (firstMs: number, lastMs: number, covered: Float32Array) => void,
  ): void {
    const numBlocks = Math.ceil(this.length / blockSize);
    let low = 0;
    let high = numBlocks;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#latest[middle] as number) < fromMs) low = middle + 1;
      else high = middle;
    }
    for (let block = low; block < numBlocks; block++) {
      const first = this.#first[block] as number;
      const last = this.#last[block] as number;
      if (first > toMs) return;
      if (last < fromMs) continue;
      // A block that is no wider than a pixel or two is as good as its spans.
      if ((this.#longest[block] as number) < leastMs && last - first < 2 * leastMs) {
        onBlock(first, last, this.#covered.subarray(block * numPaints, (block + 1) * numPaints));
        continue;
      }
      const to = Math.min(this.length, (block + 1) * blockSize);
      for (let i = block * blockSize; i < to; i++) {
        const row = this.rows[i] as number;
        const start = table.start[row] as number;
        if (start > toMs) return;
        if (start + (table.duration[row] as number) >= fromMs) onSpan(row);
      }
    }
  }
}

function copyOf<T extends Float64Array | Float32Array>(from: T, to: T): T {
  to.set(from as never);
  return to;
}

const componentOf = (worker: string): string => worker.replace(/\/[^/]*$/, "");

/** The lanes of a table that grows. */
export class LaneSet {
  #table: SpanTable;
  #numRows = 0;
  #lanes = new Map<string, Lane>();
  #sorted: Lane[] | undefined;
  readonly components: string[] = [];
  readonly #componentNumbers = new Map<string, number>();
  #componentOfWorker: number[] = [];
  /** when the last span ends */
  toMs = 0;
  /** the first moment of each step */
  readonly steps: Map<number, number> = new Map();

  constructor(table: SpanTable) {
    this.#table = table;
  }

  get table(): SpanTable {
    return this.#table;
  }

  /** Takes in what the table has grown by; true when there was something. At most `maxRows` at a time. */
  update(maxRows: number = Number.POSITIVE_INFINITY): boolean {
    const table = this.#table;
    const to = Math.min(table.length, this.#numRows + maxRows);
    if (this.#numRows >= to) return false;
    for (let row = this.#numRows; row < to; row++) {
      this.componentOfRow(row);
      this.#laneOfWorker(row).add(table, row);
      const category = table.category[row] as number;
      if (occupying.has(category) && (table.duration[row] as number) > 0) {
        for (const lane of this.#lanesOfDevices(row)) lane.add(table, row);
      }
      const start = table.start[row] as number;
      this.toMs = Math.max(this.toMs, start + (table.duration[row] as number));
      const step = table.step[row] as number;
      if (step >= 0 && start < (this.steps.get(step) ?? Number.POSITIVE_INFINITY)) this.steps.set(step, start);
    }
    this.#numRows = to;
    for (const lane of this.#lanes.values()) {
      lane.settle(
        table,
        lane.group === "devices" ? (row) => this.componentOfRow(row) : (row) => table.category[row] as number,
      );
    }
    return true;
  }

  /** The number of a row's component in `components`. */
  componentOfRow(row: number): number {
    const worker = this.#table.worker[row] as number;
    const known = this.#componentOfWorker[worker];
    if (known !== undefined) return known;
    const name = componentOf(this.#table.workers[worker] as string);
    let number = this.#componentNumbers.get(name);
    if (number === undefined) {
      number = this.components.push(name) - 1;
      this.#componentNumbers.set(name, number);
    }
    this.#componentOfWorker[worker] = number;
    return number;
  }

  // Looked up by numbers: a million rows would make as many texts.
  readonly #ofWorker = new Map<number, Lane>();
  readonly #ofDevices = new Map<number, readonly Lane[]>();

  #laneOfWorker(row: number): Lane {
    const [worker, sub] = [this.#table.worker[row] as number, this.#table.workerLane[row] as number];
    const key = worker * 256 + sub;
    let lane = this.#ofWorker.get(key);
    if (lane === undefined) {
      lane = this.#lane("workers", this.#table.workers[worker] as string, sub);
      this.#ofWorker.set(key, lane);
    }
    return lane;
  }

  #lanesOfDevices(row: number): readonly Lane[] {
    const sub = this.#table.deviceLane[row] as number;
    const key = (this.#table.deviceSet[row] as number) * 256 + sub;
    let lanes = this.#ofDevices.get(key);
    if (lanes === undefined) {
      lanes = this.#table.devicesOf(row).map((device) => this.#lane("devices", device, sub));
      this.#ofDevices.set(key, lanes);
    }
    return lanes;
  }

  /** rows that lanes have by now */
  get numRows(): number {
    return this.#numRows;
  }

  #lane(group: Lane["group"], label: string, sub: number): Lane {
    const key = `${group} ${label} ${sub}`;
    let lane = this.#lanes.get(key);
    if (lane === undefined) {
      lane = new Lane(group, label, group === "workers" ? componentOf(label) : "", sub);
      this.#lanes.set(key, lane);
      this.#sorted = undefined;
    }
    return lane;
  }

  /** Devices first, then ranks by component; the lanes of one together. */
  get lanes(): readonly Lane[] {
    const collator = new Intl.Collator("en", { numeric: true });
    this.#sorted ??= [...this.#lanes.values()].sort(
      (a, b) => a.group.localeCompare(b.group) || collator.compare(a.label, b.label) || a.sub - b.sub,
    );
    return this.#sorted;
  }

  /** The span at a time on a lane: of several the shortest; within `slackMs` beside. */
  spanAt(lane: Lane, atMs: number, slackMs: number, wanted: (category: number) => boolean): number | undefined {
    let best: number | undefined;
    let bestRank = Number.POSITIVE_INFINITY;
    const table = this.#table;
    lane.visit(
      table,
      { fromMs: atMs - slackMs, toMs: atMs + slackMs, leastMs: 0 },
      (row) => {
        const category = table.category[row] as number;
        if (!wanted(category)) return;
        const rank = table.duration[row] as number;
        if (rank <= bestRank) [best, bestRank] = [row, rank];
      },
      () => {},
    );
    return best;
  }
}

/** Whose work a category is, in words for a legend. */
export const categoryWords: Readonly<Record<Category, string>> = {
  compute: "computes",
  transfer: "moves data",
  onload: "loads",
  offload: "unloads",
  "lock-wait": "waits for a device",
  "channel-wait": "waits for data",
  call: "a call",
  step: "a step",
  evaluation: "an evaluation",
  checkpoint: "saves",
  failure: "a failure",
  episode: "an episode",
};
