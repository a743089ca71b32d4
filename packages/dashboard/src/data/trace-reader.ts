/**
 * A trace that grows, as a table of spans.
 *
 * Lines are checked by hand: a schema would take ten times as long as reading a million spans may. Lines that are no batches
 * are left out and counted; what is no span in a batch is left out. A half-written line waits for its end.
 */
import { setTimeout as delay, setImmediate as nextTurn } from "node:timers/promises";
import { Lanes, LineTail } from "@treadle/observe";
import { isCategory, type SpanInput, SpanTable } from "../view/span-table.ts";

type Batch = { readonly line: number; readonly firstRow: number };

/** How long the thread reads before others have a turn. */
const turnMs = 12;
const lookMs = 10;
const blockBytes = 1 << 20;

const occupying: ReadonlySet<string> = new Set(["compute", "transfer", "onload", "offload"]);

export class TraceReader {
  readonly #path: string;
  #tail: LineTail;
  #table = new SpanTable();
  #lanesOfWorkers = new Map<string, Lanes>();
  #lanesOfDevices = new Map<string, Lanes>();
  /** where in the file the rows from `firstRow` on are, for the little that the table leaves out */
  #batches: Batch[] = [];
  #numDamaged = 0;
  #numDropped = 0;
  #reading: Promise<void> | undefined;
  #isAtEnd = false;
  #isRead = false;

  constructor(path: string) {
    this.#path = path;
    this.#tail = new LineTail(path);
  }

  get table(): SpanTable {
    return this.#table;
  }
  get numDamaged(): number {
    return this.#numDamaged + this.#tail.numSkipped;
  }
  /** records that their process had to give up */
  get numDropped(): number {
    return this.#numDropped;
  }
  /** Somebody has looked at it. */
  get isRead(): boolean {
    return this.#isRead;
  }
  get isAtEnd(): boolean {
    return this.#isAtEnd;
  }

  /** Reads what is new, in turns with everything else; a second call waits for the first. */
  read(): Promise<void> {
    this.#isRead = true;
    this.#reading ??= this.#readAll().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  /** Waits until the table has `numRows` rows, the file ends, or `forMs` pass. Reading goes on. */
  async readTo(numRows: number, forMs: number): Promise<void> {
    const untilMs = performance.now() + forMs;
    const read = this.read().then(
      () => true,
      () => true,
    );
    while (this.#table.length < numRows && performance.now() < untilMs)
      if (await Promise.race([read, delay(lookMs, false)])) return;
  }

  async #readAll(): Promise<void> {
    let turnEnds = performance.now() + turnMs;
    for (;;) {
      const { lines, restarted, hasMore } = await this.#tail.read(blockBytes);
      if (restarted) {
        this.#table = new SpanTable(this.#table.generation + 1);
        this.#lanesOfWorkers = new Map();
        this.#lanesOfDevices = new Map();
        this.#batches = [];
        this.#numDamaged = this.#numDropped = 0;
      }
      for (const { text, atByte } of lines) {
        this.#addLine(text, atByte);
        if (performance.now() < turnEnds) continue;
        await nextTurn();
        turnEnds = performance.now() + turnMs;
      }
      this.#isAtEnd = !hasMore;
      if (!hasMore) return;
    }
  }

  #addLine(text: string, atByte: number): void {
    // What does not begin as a batch is told from one without the exception that parsing it costs.
    const batch = text.startsWith("{") ? parse(text) : undefined;
    if (!isObject(batch) || typeof batch["worker"] !== "string" || !Array.isArray(batch["records"])) {
      this.#numDamaged++;
      return;
    }
    if (typeof batch["dropped"] === "number") this.#numDropped += batch["dropped"];
    const worker = batch["worker"];
    this.#batches.push({ line: atByte, firstRow: this.#table.length });
    const lanesOfWorker = lanesOf(this.#lanesOfWorkers, worker);
    for (const span of spansOf(batch["records"])) {
      const { startMs } = span;
      const durationMs = lengthOf(span);
      const devices = devicesOf(span);
      let [lane, deviceLane] = [0, 0];
      if (durationMs > 0) {
        lane = lanesOfWorker.assign(startMs, durationMs);
        if (occupying.has(span.category))
          for (const device of devices)
            deviceLane = Math.max(deviceLane, lanesOf(this.#lanesOfDevices, device).assign(startMs, durationMs));
      }
      this.#table.append(worker, span, { durationMs, devices }, { worker: lane, device: deviceLane });
    }
  }

  /** What a span carries beside its columns; read from the file again. */
  async attributesOf(row: number): Promise<Record<string, unknown> | undefined> {
    const after = this.#batches.findIndex(({ firstRow }) => firstRow > row);
    const batch = this.#batches[after < 0 ? this.#batches.length - 1 : after - 1];
    if (batch === undefined || row < 0 || row >= this.#table.length) return undefined;
    const text = await lineAt(this.#path, batch.line);
    const parsed = text === undefined ? undefined : parse(text);
    if (!isObject(parsed) || !Array.isArray(parsed["records"])) return undefined;
    const attributes = spansOf(parsed["records"])[row - batch.firstRow]?.attributes;
    return isObject(attributes) ? attributes : {};
  }
}

async function lineAt(path: string, atByte: number): Promise<string | undefined> {
  const { createReadStream } = await import("node:fs");
  const { createInterface } = await import("node:readline");
  const stream = createReadStream(path, { encoding: "utf8", start: atByte });
  stream.on("error", () => {});
  try {
    for await (const line of createInterface({ input: stream })) return line;
    return undefined;
  } catch {
    return undefined;
  } finally {
    stream.destroy();
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

/** As a line has it, checked where it lies: copies of a million cost half as much as parsing them. */
type SpanRecord = SpanInput & {
  readonly kind: "span" | "instant";
  readonly durationMs?: number;
  readonly devices?: unknown;
  readonly attributes?: unknown;
};

function isSpan(record: unknown): record is SpanRecord {
  if (!isObject(record)) return false;
  const { kind, name, category, startMs, durationMs } = record;
  if (kind !== "span" && kind !== "instant") return false;
  if (typeof name !== "string" || typeof category !== "string" || !isCategory(category)) return false;
  return Number.isFinite(startMs) && (durationMs === undefined || typeof durationMs === "number");
}

const noDevices: readonly string[] = [];
function devicesOf({ devices }: SpanRecord): readonly string[] {
  if (!Array.isArray(devices)) return noDevices;
  const isText = (each: unknown) => typeof each === "string";
  return devices.every(isText) ? devices : devices.filter(isText);
}

const lengthOf = ({ kind, durationMs = 0 }: SpanRecord): number => (kind === "instant" ? 0 : durationMs);

/** Those of the right shape, in the order of their ends, in which lanes are given. */
function spansOf(records: readonly unknown[]): readonly SpanRecord[] {
  const spans = records.filter(isSpan);
  const endOf = (span: SpanRecord) => span.startMs + lengthOf(span);
  const isSorted = spans.every((span, at) => at === 0 || endOf(spans[at - 1] as SpanRecord) <= endOf(span));
  return isSorted ? spans : spans.sort((a, b) => endOf(a) - endOf(b));
}

function lanesOf(known: Map<string, Lanes>, name: string): Lanes {
  let lanes = known.get(name);
  if (lanes === undefined) {
    lanes = new Lanes();
    known.set(name, lanes);
  }
  return lanes;
}
