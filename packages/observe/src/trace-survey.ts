import { componentOf, type SpanCategory, type SpanRecord } from "@treadle/contracts";
import { readTrace } from "./trace-file.ts";

/** What a first pass over a trace tells, so that the second one can stream. */
export type TraceSurvey = {
  readonly fromMs: number;
  readonly toMs: number;
  /** in the order in which they are first seen */
  readonly components: readonly string[];
  readonly workers: readonly string[];
  readonly devices: readonly string[];
  readonly numSpans: number;
  readonly numDropped: number;
  /** spans that last at least 2^i microseconds and less than 2^(i+1); those below one microsecond are in the first */
  readonly durations: readonly number[];
};

/** Whether a span occupies its devices, rather than waiting for them or framing what does. */
export function occupiesDevices(record: SpanRecord): boolean {
  return occupying.has(record.category);
}

const occupying: ReadonlySet<SpanCategory> = new Set(["compute", "transfer", "onload", "offload"]);

const numDurations = 48;

export function durationClass(durationMs: number): number {
  return Math.min(numDurations - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, durationMs * 1000)))));
}

export async function surveyTrace(files: readonly string[]): Promise<TraceSurvey> {
  let fromMs = Number.POSITIVE_INFINITY;
  let toMs = Number.NEGATIVE_INFINITY;
  let numSpans = 0;
  let numDropped = 0;
  const workers = new Set<string>();
  const devices = new Set<string>();
  const durations = new Array<number>(numDurations).fill(0);
  for await (const { worker, records, dropped } of readTrace(files)) {
    workers.add(worker);
    numDropped += dropped;
    for (const record of records) {
      fromMs = Math.min(fromMs, record.startMs);
      toMs = Math.max(toMs, record.kind === "span" ? record.startMs + record.durationMs : record.startMs);
      if (record.kind !== "span") continue;
      numSpans++;
      durations[durationClass(record.durationMs)]!++;
      if (occupiesDevices(record)) for (const device of record.devices ?? []) devices.add(device);
    }
  }
  const byNumber = new Intl.Collator("en", { numeric: true }).compare;
  const components = [...new Set([...workers].map(componentOf))];
  return {
    fromMs: Number.isFinite(fromMs) ? fromMs : 0,
    toMs: Number.isFinite(toMs) ? toMs : 0,
    components,
    workers: components.flatMap((name) => [...workers].filter((each) => componentOf(each) === name).sort(byNumber)),
    devices: [...devices].sort(byNumber),
    numSpans,
    numDropped,
    durations,
  };
}
