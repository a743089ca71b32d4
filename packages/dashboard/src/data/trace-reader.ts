/**
 * A trace that grows, as a table of spans.
 *
 * Lines that are no batches are left out and counted, and so is, uncounted, what is of an unknown category. A half-written line
 * waits for its end.
 */
import { setTimeout as delay, setImmediate as nextTurn } from "node:timers/promises";
import { Lanes, LineTail, type TraceColumns, traceColumns } from "@treadle/observe";
import { isCategory, SpanTable } from "../view/span-table.ts";

type Batch = { readonly line: number; readonly firstRow: number };

/** How long the thread reads before others have a turn. */
const turnMs = 12;
const lookMs = 10;
const blockBytes = 1 << 20;

const noLanes: readonly Lanes[] = [];
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
    const batch = columnsOf(text);
    if (batch === undefined) {
      this.#numDamaged++;
      return;
    }
    const { worker, dropped, categories, deviceSets, category, startMs, durationMs, devices } = batch;
    this.#numDropped += dropped;
    this.#batches.push({ line: atByte, firstRow: this.#table.length });
    const append = this.#table.appender(batch);
    const lanesOfWorker = lanesOf(this.#lanesOfWorkers, worker);
    const lanesOfSets = deviceSets.map((set) => set.map((device) => lanesOf(this.#lanesOfDevices, device)));
    const occupies = categories.map((name) => occupying.has(name));
    for (const row of rowsOf(batch)) {
      const [start, duration] = [startMs[row] as number, durationMs[row] as number];
      let [lane, deviceLane] = [0, 0];
      if (duration > 0) {
        lane = lanesOfWorker.assign(start, duration);
        if (occupies[category[row] as number])
          for (const lanes of lanesOfSets[devices[row] as number] ?? noLanes)
            deviceLane = Math.max(deviceLane, lanes.assign(start, duration));
      }
      append(row, lane, deviceLane);
    }
  }

  /** What a span carries beside its columns; read from the file again. */
  async attributesOf(row: number): Promise<Record<string, unknown> | undefined> {
    const after = this.#batches.findIndex(({ firstRow }) => firstRow > row);
    const batch = this.#batches[after < 0 ? this.#batches.length - 1 : after - 1];
    if (batch === undefined || row < 0 || row >= this.#table.length) return undefined;
    const text = await lineAt(this.#path, batch.line);
    const columns = text === undefined ? undefined : columnsOf(text);
    if (columns === undefined) return undefined;
    const extras = columns.extras.get(rowsOf(columns)[row - batch.firstRow] as number);
    const attributes = isObject(extras) ? extras["attributes"] : undefined;
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

/** What does not begin as a line is told from one without the exception that parsing it costs. */
function columnsOf(text: string): TraceColumns | undefined {
  if (!text.startsWith("{")) return undefined;
  try {
    return traceColumns(JSON.parse(text));
  } catch {
    return undefined;
  }
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

/** Those whose category is known here. */
function rowsOf({ categories, category }: TraceColumns): readonly number[] {
  const isKnown = categories.map(isCategory);
  return category.map((_, row) => row).filter((row) => isKnown[category[row] as number]);
}

function lanesOf(known: Map<string, Lanes>, name: string): Lanes {
  let lanes = known.get(name);
  if (lanes === undefined) {
    lanes = new Lanes();
    known.set(name, lanes);
  }
  return lanes;
}
