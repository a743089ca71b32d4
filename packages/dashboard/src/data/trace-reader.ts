/**
 * A trace that grows, as a table of spans.
 *
 * Lines are checked by hand: a schema would take ten times as long as reading a million spans may. What is no span of the
 * right shape is left out and counted; a half-written line waits for its end.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import { Lanes, LineTail } from "@treadle/observe";
import { type SpanInput, SpanTable } from "../view/span-table.ts";

type Batch = { readonly line: number; readonly firstRow: number };

/** How long the thread reads before others have a turn. */
const turnMs = 12;
const blockBytes = 1 << 20;

const occupying: ReadonlySet<string> = new Set(["compute", "transfer", "onload", "offload"]);

export class TraceReader {
  readonly #path: string;
  #tail: LineTail;
  #table = new SpanTable();
  #lanes = new Map<string, Lanes>();
  /** where in the file the rows from `firstRow` on are, for the little that the table leaves out */
  #batches: Batch[] = [];
  #numDamaged = 0;
  #numDropped = 0;
  #reading: Promise<void> | undefined;
  #isAtEnd = false;

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
  get isAtEnd(): boolean {
    return this.#isAtEnd;
  }

  /** Reads what is new, in turns with everything else; a second call waits for the first. */
  read(): Promise<void> {
    this.#reading ??= this.#readAll().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  async #readAll(): Promise<void> {
    let turnEnds = performance.now() + turnMs;
    for (;;) {
      const { lines, restarted, hasMore } = await this.#tail.read(blockBytes);
      if (restarted) {
        this.#table = new SpanTable(this.#table.generation + 1);
        this.#lanes = new Map();
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
    const spans = batch["records"].flatMap((record) => spanOf(record) ?? []);
    // Lanes are given in the order of ends.
    spans.sort((a, b) => a.startMs + a.durationMs - b.startMs - b.durationMs);
    this.#batches.push({ line: atByte, firstRow: this.#table.length });
    for (const span of spans) {
      const lane = this.#laneOf(`w ${worker}`, span);
      let deviceLane = 0;
      if (occupying.has(span.category)) {
        for (const device of span.devices ?? []) deviceLane = Math.max(deviceLane, this.#laneOf(`d ${device}`, span));
      }
      this.#table.append(worker, span, { worker: lane, device: deviceLane });
    }
  }

  #laneOf(key: string, { startMs, durationMs }: SpanInput): number {
    if (durationMs === 0) return 0;
    let lanes = this.#lanes.get(key);
    if (lanes === undefined) {
      lanes = new Lanes();
      this.#lanes.set(key, lanes);
    }
    return lanes.assign(startMs, durationMs);
  }

  /** What a span carries beside its columns; read from the file again. */
  async attributesOf(row: number): Promise<Record<string, unknown> | undefined> {
    const after = this.#batches.findIndex(({ firstRow }) => firstRow > row);
    const batch = this.#batches[after < 0 ? this.#batches.length - 1 : after - 1];
    if (batch === undefined || row < 0 || row >= this.#table.length) return undefined;
    const text = await lineAt(this.#path, batch.line);
    const parsed = text === undefined ? undefined : parse(text);
    if (!isObject(parsed) || !Array.isArray(parsed["records"])) return undefined;
    const records = parsed["records"].filter((record) => spanOf(record) !== undefined) as Record<string, unknown>[];
    const endOf = (record: Record<string, unknown>) =>
      (record["startMs"] as number) + ((record["durationMs"] as number | undefined) ?? 0);
    records.sort((a, b) => endOf(a) - endOf(b));
    const attributes = records[row - batch.firstRow]?.["attributes"];
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

function spanOf(record: unknown): SpanInput | undefined {
  if (!isObject(record)) return undefined;
  const { kind, name, category, startMs, durationMs = 0, step, devices } = record;
  if (kind !== "span" && kind !== "instant") return undefined;
  if (typeof name !== "string" || typeof category !== "string") return undefined;
  if (typeof startMs !== "number" || typeof durationMs !== "number") return undefined;
  return {
    name,
    category,
    startMs,
    durationMs: kind === "instant" ? 0 : durationMs,
    step: Number.isInteger(step) ? (step as number) : undefined,
    devices: Array.isArray(devices) ? devices.filter((each) => typeof each === "string") : undefined,
  };
}
