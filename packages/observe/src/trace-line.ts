/**
 * One line of a trace file: the spans and instants of a batch in columns. That takes a sixth of the bytes of a list of objects, and
 * a tenth of the time to read; texts are numbers into lists of the line's own.
 *
 * TN1 what is read is what was written, to a tenth of a microsecond, in the order of the ends, but for what is twelve years away
 *    from the middle of its batch, or lasts as long.
 * TN2 a line whose columns do not fit together, or point outside of its lists, is none.
 */
import { SpanBatch, type SpanRecord, type TraceRecord } from "@treadle/contracts";

const unitsPerMs = 10_000;
/** Differences of such times are integers that are kept exactly. */
const mostMs = 4e11;
const none = -1;

/** What most rows lack. */
type Extras = Pick<SpanRecord, "flowOut" | "flowIn" | "id" | "parent" | "attributes">;

const noExtras: Extras = {};

type Line = {
  readonly worker: string;
  readonly pid: number;
  /** records that their process had to give up */
  readonly dropped: number;
  readonly originMs: number;
  readonly names: readonly string[];
  readonly categories: readonly string[];
  readonly deviceSets: readonly (readonly string[])[];
  readonly name: readonly number[];
  readonly category: readonly number[];
  /** after the start of the row before, and of the first after the origin, which is near all of them */
  readonly start: readonly number[];
  /** of an instant -1 */
  readonly duration: readonly number[];
  /** -1 where there is none, as in `devices` */
  readonly step: readonly number[];
  readonly devices: readonly number[];
  readonly extras: readonly (readonly [row: number, extras: Extras])[];
  readonly counters: readonly unknown[];
};

/**
 * Columns with a row for each span and instant, in the order of their ends. Texts are numbers into the lists; of the lists, categories
 * are not checked, as another version may know others.
 */
export type TraceColumns = Omit<Line, "originMs" | "start" | "duration" | "extras"> & {
  readonly startMs: readonly number[];
  /** of an instant -1 */
  readonly durationMs: readonly number[];
  /** by row, not checked */
  readonly extras: ReadonlyMap<number, unknown>;
};

export function traceLine({ worker, pid, dropped, records }: SpanBatch): string {
  const counters = records.filter((record) => record.kind === "counter");
  const spans = records.filter((record) => record.kind !== "counter");
  const originMs = Math.floor(spans[spans.length >> 1]?.startMs ?? 0);
  const rows = spans.filter((record) => isKept(record, originMs));
  const [names, categories, deviceSets] = [new Numbers(), new Numbers(), new Numbers()];
  let before = 0;
  const line: Line = {
    worker,
    pid,
    dropped: dropped + records.length - rows.length - counters.length,
    originMs,
    name: rows.map((record) => names.of(record.name)),
    category: rows.map((record) => categories.of(record.category)),
    start: rows.map(({ startMs }) => {
      const start = Math.round((startMs - originMs) * unitsPerMs);
      const after = start - before;
      before = start;
      return after;
    }),
    duration: rows.map((record) => (record.kind === "span" ? Math.round(record.durationMs * unitsPerMs) : none)),
    step: rows.map(({ step = none }) => step),
    devices: rows.map(({ devices }) => (devices === undefined ? none : deviceSets.of(JSON.stringify(devices)))),
    extras: rows.flatMap((record, row) => {
      const extras = extrasOf(record);
      return extras === undefined ? [] : [[row, extras] as const];
    }),
    counters,
    names: names.list,
    categories: categories.list,
    deviceSets: deviceSets.list.map((text) => JSON.parse(text)),
  };
  return JSON.stringify(line);
}

/** What is further away is the mistake of a clock, and counts as dropped, as does what is no record. */
function isKept(record: Exclude<TraceRecord, { kind: "counter" }>, originMs: number): boolean {
  const { startMs, step = 0 } = record;
  const durationMs = record.kind === "span" ? record.durationMs : 0;
  const isNear = Math.abs(startMs - originMs) < mostMs && durationMs >= 0 && durationMs < mostMs;
  return isNear && Number.isSafeInteger(step) && step >= 0;
}

class Numbers {
  readonly list: string[] = [];
  readonly #numbers = new Map<string, number>();

  of(text: string): number {
    let number = this.#numbers.get(text);
    if (number === undefined) {
      number = this.list.push(text) - 1;
      this.#numbers.set(text, number);
    }
    return number;
  }
}

function extrasOf(record: Exclude<TraceRecord, { kind: "counter" }>): Extras | undefined {
  const { parent, attributes } = record;
  const { flowOut, flowIn, id } = record.kind === "span" ? record : noExtras;
  const isNone = (parent ?? attributes ?? flowOut ?? flowIn ?? id) === undefined;
  return isNone ? undefined : { flowOut, flowIn, id, parent, attributes };
}

/** By hand, as a schema takes ten times as long as reading a million spans may; undefined for what is no line (TN2). */
export function traceColumns(parsed: unknown): TraceColumns | undefined {
  if (typeof parsed !== "object" || parsed === null) return undefined;
  const line = parsed as { readonly [Key in keyof Line]?: unknown };
  const { worker, pid, dropped, originMs, names, categories, deviceSets, extras, counters } = line;
  if (!isText(worker) || !isCount(pid) || !isCount(dropped) || !Number.isSafeInteger(originMs)) return undefined;
  if (!isTexts(names) || !isTexts(categories) || !isList(deviceSets, isTexts) || !Array.isArray(counters))
    return undefined;
  const numRows = Array.isArray(line.name) ? line.name.length : none;
  const isColumn = (column: unknown, least: number, end: number): column is number[] =>
    Array.isArray(column) &&
    column.length === numRows &&
    column.every((n) => Number.isInteger(n) && n >= least && n < end);
  const { name, category, start, duration, step, devices } = line;
  const isWhole =
    isColumn(name, 0, names.length) &&
    isColumn(category, 0, categories.length) &&
    isColumn(start, -Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER) &&
    isColumn(duration, none, Number.MAX_SAFE_INTEGER) &&
    isColumn(step, none, Number.MAX_SAFE_INTEGER) &&
    isColumn(devices, none, deviceSets.length);
  if (!isWhole || !isList(extras, isPair)) return undefined;
  let at = 0;
  const startMs = start.map((after) => {
    at += after;
    return (originMs as number) + at / unitsPerMs;
  });
  const durationMs = duration.map((units) => (units === none ? none : units / unitsPerMs));
  const columns = {
    ...{ worker, pid, dropped, names, categories, deviceSets, counters },
    ...{ name, category, startMs, durationMs, step, devices, extras: new Map(extras) },
  };
  return inOrderOfEnds(columns);
}

function inOrderOfEnds(columns: TraceColumns): TraceColumns {
  const { startMs, durationMs } = columns;
  const endOf = (row: number): number => (startMs[row] as number) + Math.max(0, durationMs[row] as number);
  let isSorted = true;
  for (let row = 1; row < startMs.length && isSorted; row++) isSorted = endOf(row - 1) <= endOf(row);
  if (isSorted) return columns;
  const order = startMs.map((_, row) => row).sort((a, b) => endOf(a) - endOf(b));
  const of = (column: readonly number[]): number[] => order.map((row) => column[row] as number);
  const extras = order.flatMap((row, place) => {
    const own = columns.extras.get(row);
    return own === undefined ? [] : [[place, own] as const];
  });
  return {
    ...columns,
    name: of(columns.name),
    category: of(columns.category),
    startMs: of(startMs),
    durationMs: of(durationMs),
    step: of(columns.step),
    devices: of(columns.devices),
    extras: new Map(extras),
  };
}

/** Throws what zod throws for what `traceColumns` leaves unchecked. */
export function batchOf(columns: TraceColumns): SpanBatch {
  const { worker, pid, dropped, names, categories, deviceSets, startMs, durationMs, step, devices } = columns;
  const records = startMs.map((start, row) => {
    const extras = columns.extras.get(row);
    const duration = durationMs[row] as number;
    const [stepOf, deviceSet] = [step[row] as number, devices[row] as number];
    return {
      ...(typeof extras === "object" ? extras : {}),
      kind: duration === none ? "instant" : "span",
      name: names[columns.name[row] as number],
      category: categories[columns.category[row] as number],
      startMs: start,
      ...(duration === none ? {} : { durationMs: duration }),
      ...(stepOf === none ? {} : { step: stepOf }),
      ...(deviceSet === none ? {} : { devices: deviceSets[deviceSet] }),
    };
  });
  const batch = SpanBatch.parse({ worker, pid, dropped, records: [...records, ...columns.counters] });
  batch.records.sort((a, b) => endOfRecord(a) - endOfRecord(b));
  return batch;
}

const endOfRecord = (record: TraceRecord): number =>
  record.kind === "span" ? record.startMs + record.durationMs : record.startMs;

const isText = (value: unknown): value is string => typeof value === "string";
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isPair = (value: unknown): value is [number, unknown] =>
  Array.isArray(value) && value.length === 2 && isCount(value[0]);
const isList = <Item>(value: unknown, isItem: (item: unknown) => item is Item): value is Item[] =>
  Array.isArray(value) && value.every(isItem);
const isTexts = (value: unknown): value is string[] => isList(value, isText);
