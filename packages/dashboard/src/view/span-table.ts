/**
 * Spans in columns: what a server sends and a page draws, at 26 bytes a span. Texts are numbers into shared lists.
 *
 * ST1 rows are only appended, so `encode(from)` is what a reader with `from` rows lacks.
 */
import type { TraceColumns } from "@treadle/observe";
import { Texts } from "./texts.ts";

export const categories = [
  "compute",
  "transfer",
  "onload",
  "offload",
  "lock-wait",
  "channel-wait",
  "call",
  "step",
  "evaluation",
  "checkpoint",
  "failure",
  "episode",
] as const;
export type Category = (typeof categories)[number];
const categoryNumbers = new Map<string, number>(categories.map((name, index) => [name, index]));

export const isCategory = (name: string): name is Category => categoryNumbers.has(name);
/** The number of a category, as rows have it. */
export const categoryNumber = (name: Category): number => categoryNumbers.get(name) as number;

/** Spans of one worker. */
export type SpanColumns = Pick<
  TraceColumns,
  "worker" | "names" | "categories" | "deviceSets" | "name" | "category" | "startMs" | "durationMs" | "step" | "devices"
>;

type Header = {
  readonly from: number;
  readonly count: number;
  /** nothing more was there */
  readonly isAll: boolean;
  /** rows before it are of no account: the trace is another one */
  readonly generation: number;
  readonly originMs: number;
  readonly names: readonly string[];
  readonly workers: readonly string[];
  readonly deviceSets: readonly string[];
};

const separator = " ";

export class SpanTable {
  /** all starts are relative to it, in milliseconds since the Unix epoch */
  originMs = 0;
  generation: number;
  length = 0;
  start: Float64Array = new Float64Array(1024);
  duration: Float32Array = new Float32Array(1024);
  step: Int32Array = new Int32Array(1024);
  name: Uint16Array = new Uint16Array(1024);
  worker: Uint16Array = new Uint16Array(1024);
  deviceSet: Uint16Array = new Uint16Array(1024);
  category: Uint8Array = new Uint8Array(1024);
  /** the lane within its worker, and within its devices, where spans overlap */
  workerLane: Uint8Array = new Uint8Array(1024);
  deviceLane: Uint8Array = new Uint8Array(1024);
  readonly #names = new Texts();
  readonly #workers = new Texts();
  readonly #deviceSets = new Texts();

  constructor(generation = 0) {
    this.generation = generation;
  }

  get names(): readonly string[] {
    return this.#names.list;
  }
  get workers(): readonly string[] {
    return this.#workers.list;
  }
  /** device ids with spaces between; the empty one is none */
  get deviceSets(): readonly string[] {
    return this.#deviceSets.list;
  }

  devicesOf(row: number): string[] {
    const text = this.deviceSets[this.deviceSet[row] as number] ?? "";
    return text === "" ? [] : text.split(separator);
  }

  /** Takes one row after another of these; an instant lasts 0, and what is of an unknown category is left out. */
  appender(columns: SpanColumns): (row: number, workerLane: number, deviceLane: number) => void {
    const { worker, names, categories, deviceSets, name, category, startMs, durationMs, step, devices } = columns;
    const workerHere = this.#workers.of(worker);
    const namesHere = names.map((each) => this.#names.of(each));
    const categoriesHere = categories.map((each) => categoryNumbers.get(each));
    const noDevices = this.#deviceSets.of("");
    const setsHere = deviceSets.map((set) => this.#deviceSets.of(set.join(separator)));
    return (row, workerLane, deviceLane) => {
      const categoryHere = categoriesHere[category[row] as number];
      if (categoryHere === undefined) return;
      if (this.length === 0) this.originMs = Math.floor(startMs[row] as number);
      this.#reserve(this.length + 1);
      const own = this.length++;
      this.start[own] = (startMs[row] as number) - this.originMs;
      this.duration[own] = Math.max(0, durationMs[row] as number);
      this.step[own] = step[row] as number;
      this.name[own] = namesHere[name[row] as number] as number;
      this.worker[own] = workerHere;
      this.deviceSet[own] = setsHere[devices[row] as number] ?? noDevices;
      this.category[own] = categoryHere;
      this.workerLane[own] = Math.min(255, workerLane);
      this.deviceLane[own] = Math.min(255, deviceLane);
    };
  }

  #reserve(rows: number): void {
    if (rows <= this.start.length) return;
    const size = Math.max(rows, 2 * this.start.length);
    const grow = <T extends Float64Array | Float32Array | Int32Array | Uint16Array | Uint8Array>(old: T): T => {
      const grown = new (old.constructor as new (length: number) => T)(size);
      grown.set(old as never);
      return grown;
    };
    this.start = grow(this.start);
    this.duration = grow(this.duration);
    this.step = grow(this.step);
    this.name = grow(this.name);
    this.worker = grow(this.worker);
    this.deviceSet = grow(this.deviceSet);
    this.category = grow(this.category);
    this.workerLane = grow(this.workerLane);
    this.deviceLane = grow(this.deviceLane);
  }

  get #columns() {
    const { start, duration, step, name, worker, deviceSet, category, workerLane, deviceLane } = this;
    return [start, duration, step, name, worker, deviceSet, category, workerLane, deviceLane] as const;
  }

  /**
   * At most `maxRows` rows from `from` on, with all texts. The reader has the rows before. `isWhole`: the table has all rows that
   * there are.
   */
  encode(from: number, maxRows: number = Number.POSITIVE_INFINITY, isWhole = true): Uint8Array {
    const first = Math.max(0, Math.min(from, this.length));
    const to = Math.min(this.length, first + maxRows);
    const header: Header = {
      from: first,
      count: to - first,
      isAll: isWhole && to === this.length,
      generation: this.generation,
      originMs: this.originMs,
      names: this.names,
      workers: this.workers,
      deviceSets: this.deviceSets,
    };
    const text = new TextEncoder().encode(JSON.stringify(header));
    const padded = Math.ceil((4 + text.length) / 8) * 8;
    const parts = this.#columns.map((column) => column.subarray(first, to));
    const size = parts.reduce((sum, part) => align(sum) + part.byteLength, padded);
    const bytes = new Uint8Array(size);
    new DataView(bytes.buffer).setUint32(0, text.length, true);
    bytes.set(text, 4);
    let at = padded;
    for (const part of parts) {
      at = align(at);
      bytes.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at);
      at += part.byteLength;
    }
    return bytes;
  }

  /** Adds what `encode` gave; false when rows are missing in between or belong to another generation. */
  decode(bytes: ArrayBuffer): boolean {
    const length = new DataView(bytes).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as Header;
    if (header.generation !== this.generation || header.from !== this.length) return false;
    if (this.length === 0) this.originMs = header.originMs;
    this.#names.add(header.names.slice(this.names.length));
    this.#workers.add(header.workers.slice(this.workers.length));
    this.#deviceSets.add(header.deviceSets.slice(this.deviceSets.length));
    this.#reserve(this.length + header.count);
    let at = Math.ceil((4 + length) / 8) * 8;
    for (const column of this.#columns) {
      at = align(at);
      const size = header.count * column.BYTES_PER_ELEMENT;
      new Uint8Array(column.buffer).set(new Uint8Array(bytes, at, size), this.length * column.BYTES_PER_ELEMENT);
      at += size;
    }
    this.length += header.count;
    return true;
  }
}

/** What `encode` says of itself, without its rows. */
export function spanHeader(bytes: ArrayBuffer): Pick<Header, "isAll" | "generation"> {
  const length = new DataView(bytes).getUint32(0, true);
  return JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as Header;
}

const align = (at: number): number => Math.ceil(at / 8) * 8;
